// Unpack the browser below the folder for temporary files, and print where its program is.
import chromium from "@sparticuz/chromium";

console.log(await chromium.executablePath());
