// Read an array of Zarr over HTTP, and write its type and its shape as a line, then its values.
import * as zarr from "zarrita";

const [url, path, token] = process.argv.slice(2);
const headers = token ? { authorization: `Bearer ${token}` } : {};
const store = new zarr.FetchStore(url, { overrides: { headers } });
const array = await zarr.open(zarr.root(store).resolve(path), { kind: "array" });
const { data, shape } = await zarr.get(array);
process.stdout.write(`${JSON.stringify([array.dtype, shape])}\n`);
process.stdout.write(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
