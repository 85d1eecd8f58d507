// Paints the numbers that the server sends: maps, images, lines and grids of chunks.
"use strict";

(() => {
  // uPlot, which is loaded next, fails where Intl refuses the language of the browser.
  try {
    new Intl.NumberFormat(navigator.language);
  } catch {
    Object.defineProperty(navigator, "language", { value: "en" });
  }

  const COLOURS = {
    viridis: "440154 482878 3e4989 31688e 26828e 1f9e89 35b779 6ece58 b5de2b fde725",
    magma: "000004 180f3d 440f76 721f81 9e2f7f cd4071 f1605d fd9668 feca8d fcfdbf",
    balance: "053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f",
    grey: "101010 f5f5f5",
  };

  // A table of 256 colours between those that are named.
  function colourTable(name) {
    const stops = COLOURS[name].split(" ").map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
    const table = new Uint8ClampedArray(256 * 3);
    for (let i = 0; i < 256; i++) {
      const position = (i / 255) * (stops.length - 1);
      const low = Math.min(Math.floor(position), stops.length - 2);
      for (let k = 0; k < 3; k++) {
        table[3 * i + k] = stops[low][k] + (position - low) * (stops[low + 1][k] - stops[low][k]);
      }
    }
    return table;
  }

  // The answer begins with the length of its header. The values follow as 32-bit numbers, or packed:
  // a table, and for each value the difference of its place in the table to that of its neighbour.
  async function readPicture(url, signal) {
    const response = await fetch(url, { signal });
    if (!response.ok) throw new Error(await response.text());
    const buffer = await response.arrayBuffer();
    const length = new DataView(buffer).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    if (header.wide) return { header, values: new Float64Array(buffer.slice(4 + length)) };
    if (!header.levels) return { header, values: new Float32Array(buffer, 4 + length) };
    const table = new Float32Array(buffer, 4 + length, header.levels);
    const bytes = new Uint8Array(buffer, 4 + length + table.byteLength);
    const [rows, columns] = header.shape;
    const count = rows * columns, hasHighBytes = header.levels > 256;
    const values = new Float32Array(count);
    for (let i = 0, place = 0; i < count; i++) {
      if (i % columns === 0) place = 0;
      const code = bytes[i] + (hasHighBytes ? bytes[count + i] << 8 : 0);
      const step = code & 1 ? -(code + 1) / 2 : code / 2;
      place = (place + step + header.levels) % header.levels;
      values[i] = table[place];
    }
    return { header, values, table };
  }

  // By how much a packed value may differ from the exact one.
  function roundingOf(value, table) {
    let low = 0, high = table.length; // the missing ones come last
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (table[middle] <= value) low = middle; else high = middle;
    }
    const gaps = [table[low] - table[low - 1], table[low + 1] - table[low]];
    return Math.max(...gaps.filter(Number.isFinite), 0) / 2;
  }

  // Round numbers between two others, with at most so many steps between them.
  function roundNumbers(low, high, count) {
    const least = (high - low) / count, power = 10 ** Math.floor(Math.log10(least));
    const width = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least) ?? least;
    const first = Math.ceil(low / width), number = Math.floor(high / width) - first + 1;
    return Array.from({ length: number }, (_, i) => (first + i) * width);
  }

  const shown = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(6))) : "missing");

  const tick = (value) => String(Number(value.toPrecision(12)));

  const MONTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

  // Year, month and day of a day that is counted from 1970 in its own calendar.
  function dateOf(days, calendar) {
    if (calendar === "360_day") {
      return [1970 + Math.floor(days / 360), 1 + (Math.floor(days / 30) % 12 + 12) % 12, 1 + ((days % 30) + 30) % 30];
    }
    if (calendar === "noleap" || calendar === "all_leap") {
      const length = calendar === "noleap" ? 365 : 366, year = Math.floor(days / length);
      let month = 0, day = days - year * length;
      const daysOf = (number) => MONTHS[number] + (number === 1 && length === 366 ? 1 : 0);
      while (day >= daysOf(month)) day -= daysOf(month++);
      return [1970 + year, month + 1, day + 1];
    }
    if (calendar === "julian" || (calendar === "standard" && days < -141427)) { // before 1582-10-15
      const count = days + (calendar === "julian" ? 2440601 : 2440588) + 32082;
      const year = Math.floor((4 * count + 3) / 1461), rest = count - Math.floor((1461 * year) / 4);
      const month = Math.floor((5 * rest + 2) / 153);
      return [
        year - 4800 + Math.floor(month / 10), month + 3 - 12 * Math.floor(month / 10), rest - Math.floor((153 * month + 2) / 5) + 1,
      ];
    }
    const date = new Date(days * 864e5);
    return [date.getUTCFullYear(), date.getUTCMonth() + 1, date.getUTCDate()];
  }

  // The date of a value that counts time.
  function dateText({ origin, seconds, calendar, daily }, value) {
    const moment = Math.round(origin + value * seconds), days = Math.floor(moment / 86400), clock = moment - days * 86400;
    if (!(Math.abs(days) < 36e5)) return tick(value);
    const two = (number) => String(number).padStart(2, "0");
    const [year, month, day] = dateOf(days, calendar);
    const date = `${String(year).padStart(4, "0")}-${two(month)}-${two(day)}`;
    if (daily && !clock) return date;
    return `${date} ${two(Math.floor(clock / 3600))}:${two(Math.floor(clock / 60) % 60)}:${two(clock % 60)}`;
  }

  // A value of a picture as a text, with its units if it has any.
  const textOf = ({ times }, value) => (times && Number.isFinite(value) ? dateText(times, value) : shown(value));
  const fullText = (header, value) =>
    textOf(header, value) + (header.units && Number.isFinite(value) ? ` ${header.units}` : "");

  // A value with as many digits as its rounding allows.
  function shownAbout(header, value, rounding) {
    if (!Number.isFinite(value) || !rounding) return fullText(header, value);
    const digit = 10 ** Math.floor(Math.log10(rounding));
    return `about ${fullText(header, header.times ? value : Math.round(value / digit) * digit)}`;
  }

  // The coordinate of a drawn step: a date, a number, or the number of the step.
  const labelOf = (axis, number) => axis.dates?.[number] ?? (axis.values[number] === null ? "?" : shown(axis.values[number]));

  function tableOf(head, rows) {
    const table = document.createElement("table");
    const cell = (scope, text) => { const th = document.createElement("th"); th.textContent = text; th.scope = scope; return th; };
    table.createTHead().insertRow().append(...head.map((text) => cell("col", text)));
    const body = table.createTBody();
    for (const [name, ...texts] of rows) {
      const line = body.insertRow();
      line.append(cell("row", name));
      for (const text of texts) line.insertCell().textContent = text;
    }
    return table;
  }

  function lineTable(header, values) {
    const axis = header.axes.columns, { name } = header;
    const rows = Array.from(values, (value, number) => [labelOf(axis, number), textOf(header, value)]);
    return tableOf([`${axis.name} ${axis.units}`.trim(), `${name} ${header.units}`.trim()], rows);
  }

  let land = null;
  // The coast lines as lists of longitude and latitude, decoded from TopoJSON.
  function readLand() {
    land ??= fetch("/static/vendor/land-110m.json")
      .then((response) => response.json())
      .then(({ arcs, transform: { scale, translate } }) =>
        arcs.map((arc) => {
          let x = 0, y = 0;
          return arc.map(([dx, dy]) => [(x += dx) * scale[0] + translate[0], (y += dy) * scale[1] + translate[1]]);
        }));
    return land;
  }

  const textColour = () => getComputedStyle(document.body).color;

  // The colour that a variable of the style sheet has at present, in light or in dark.
  function colourOf(name) {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const { color } = getComputedStyle(probe);
    probe.remove();
    return color;
  }

  const ruler = document.createElement("canvas").getContext("2d");
  function widthOf(texts) {
    ruler.font = "12px system-ui, sans-serif";
    return Math.ceil(Math.max(0, ...texts.map((text) => ruler.measureText(text).width)));
  }

  // A line with a cursor, which the pointer and the keys move. `say` gets the value at the cursor.
  class Line {
    constructor(place, header, values, say) {
      const axis = header.axes.columns;
      Object.assign(this, { header, axis, say, number: null });
      this.steps = axis.values.map((_, number) => axis.start + number * axis.stride);
      this.values = Array.from(values, (value) => (Number.isFinite(value) ? value : null));
      const width = Math.max(240, Math.min(1000, place.clientWidth || place.parentElement.clientWidth));
      const labels = new Map(axis.labels), widest = widthOf([...labels.values()]);
      const every = Math.max(1, Math.ceil(labels.size / Math.max(1, Math.floor((width - 80) / (widest + 16)))));
      const splits = [...labels.keys()].filter((_, number) => number % every === 0);
      const { name } = header;
      const grid = { stroke: colourOf("--line") }, stroke = textColour();
      const options = {
        width,
        height: 260,
        padding: [null, Math.ceil(widest / 2) + 4, null, null],
        scales: { x: { time: false } },
        axes: [
          { label: `${axis.name} ${axis.units}`.trim(), stroke, grid, splits: () => splits, values: (_, some) => some.map((step) => labels.get(step) ?? "") },
          {
            stroke,
            grid,
            values: (_, some) => some.map((value) => (header.times ? textOf(header, value) : tick(value))),
            size: (plot, texts, number, cycle) => (cycle > 1 ? plot.axes[number]._size : widthOf(texts ?? []) + 20),
          },
        ],
        series: [
          { label: axis.name, value: (_plot, _value, _series, number) => (number === null ? "--" : labelOf(axis, number)) },
          {
            label: header.units ? `${name} (${header.units})` : name,
            stroke: colourOf("--accent"),
            width: 2,
            spanGaps: false,
            value: (_, value) => (value === null ? "--" : textOf(header, value)),
          },
        ],
      };
      place.replaceChildren();
      this.plot = new uPlot(options, [this.steps, this.values], place);
    }

    // Whether the key moved the cursor.
    key(event) {
      const last = this.steps.length - 1, page = Math.max(1, Math.round(last / 10)), number = this.number ?? -1;
      const targets = {
        ArrowLeft: number - 1, ArrowDown: number - 1, ArrowRight: number + 1, ArrowUp: number + 1,
        PageUp: number + page, PageDown: number - page, Home: 0, End: last,
      };
      if (!(event.key in targets)) return;
      event.preventDefault();
      this.number = Math.max(0, Math.min(last, targets[event.key]));
      const value = this.values[this.number];
      const top = value === null ? this.plot.bbox.height / devicePixelRatio / 2 : this.plot.valToPos(value, "y");
      this.plot.setCursor({ left: this.plot.valToPos(this.steps[this.number], "x"), top });
      this.say(`${fullText(this.header, value ?? NaN)} at ${this.axis.name} ${labelOf(this.axis, this.number)}`);
    }
  }

  class Picture {
    constructor(element) {
      this.element = element;
      this.shape = element.dataset.shape ? element.dataset.shape.split(",").map(Number) : [];
      this.index = this.shape.map(() => 0);
      this.status = element.querySelector(".status");
      this.place = element.querySelector(".canvas");
      this.series = element.querySelector(".series");
      this.controls = element.querySelector(".controls");
      this.cursor = null;
      for (const slider of element.querySelectorAll("input[type=range]")) {
        this.index[Number(slider.dataset.axis)] = Number(slider.value);
        // A part of a large array is read when the slider rests.
        slider.addEventListener("part" in slider.dataset ? "change" : "input", () => {
          this.index[Number(slider.dataset.axis)] = Number(slider.value);
          clearTimeout(this.timer);
          this.timer = setTimeout(() => this.load(), 60);
        });
      }
      this.controls.addEventListener("submit", (event) => event.preventDefault());
      this.range = this.controls.elements.range;
      this.bounds = ["lowest", "highest"].map((name) => this.controls.elements[name]).filter(Boolean);
      this.controls.elements.colours?.addEventListener("change", () => this.paint());
      this.range?.addEventListener("change", () => { this.kept = this.range.value === "kept" ? this.drawnLimits : null; this.paint(); });
      for (const input of this.bounds) input.addEventListener("change", () => this.keepEntered());
      this.controls.elements.reset?.addEventListener("click", () => { this.range.value = "robust"; this.kept = null; this.paint(); });
      this.along = this.controls.elements.along;
      this.along?.addEventListener("change", () => { if (!this.series.hidden) this.showSeries(); });
      this.series?.querySelector(".plot").addEventListener("keydown", (event) => this.seriesLine?.key(event));
      this.place.addEventListener("pointermove", (event) => this.point(event));
      this.place.addEventListener("click", (event) => { this.point(event); this.showSeries(); });
      this.place.addEventListener("keydown", (event) => this.key(event));
      window.addEventListener("resize", () => this.paint());
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
      this.load();
    }

    url(base, more = "") {
      const joint = base.includes("?") ? "&" : "?";
      return `${base}${joint}index=${this.index.join(",")}${more}`;
    }

    async load() {
      this.request?.abort();
      this.request = new AbortController();
      clearTimeout(this.slow);
      this.slow = setTimeout(() => { this.status.textContent = "Reading …"; }, 250);
      const begun = performance.now();
      try {
        const picture = await readPicture(this.url(this.element.dataset.picture), this.request.signal);
        this.header = picture.header;
        this.values = picture.values;
        this.table = picture.header.rounding ? picture.table : null;
      } catch (error) {
        if (error.name === "AbortError") return;
        clearTimeout(this.slow);
        this.status.textContent = error.message;
        return;
      }
      clearTimeout(this.slow);
      for (const slider of this.element.querySelectorAll("input[type=range]")) {
        const { label } = this.header.index[Number(slider.dataset.axis)];
        slider.nextElementSibling.textContent = label;
        slider.setAttribute("aria-valuetext", label);
      }
      if (!(await this.paint())) return;
      this.summary = this.describe();
      this.status.textContent = this.summary;
      this.element.dataset.milliseconds = Math.round(performance.now() - begun);
      this.element.dataset.ready = "true";
    }

    describe() {
      const { kind, range, note } = this.header;
      if (kind === "value") return note;
      const missing = range && range.missing ? `, ${range.missing.toLocaleString("en")} missing` : "";
      const text = range ? `${textOf(this.header, range.min)} to ${fullText(this.header, range.max)}${missing}.` : "All values are missing.";
      return `${text} ${note}`.trim();
    }

    // Draw the picture and fill its table; a failure is told instead. Return whether it worked.
    async paint() {
      try {
        await this.draw();
        this.drawSeries?.();
        await this.fillTable();
        return true;
      } catch (error) {
        this.status.textContent = `The picture could not be painted: ${error.message}`;
        return false;
      }
    }

    // Dates are counted from another time in each picture.
    fixed(value) {
      const { times } = this.header;
      return times ? times.origin + value * times.seconds : value;
    }

    keepEntered() {
      const entered = this.bounds.map((input, number) => (input.value === "" ? this.drawnLimits[number] : Number(input.value)));
      this.kept = [Math.min(...entered), Math.max(...entered)];
      this.range.value = "kept";
      this.paint();
    }

    async draw() {
      if (!this.values) return;
      if (this.header.kind === "line") {
        this.line = new Line(this.place, this.header, this.values, (text) => { this.status.textContent = text; });
        return;
      }
      if (this.header.kind === "value") {
        this.place.textContent = fullText(this.header, this.values[0]);
        return;
      }
      const [rows, columns] = this.header.shape;
      const { rows: down, columns: right } = this.header.axes;
      const isMap = this.header.kind === "map";
      // North is up and east is right; other images have their first row on top.
      const flipY = isMap && down.values[0] < down.values[rows - 1];
      const flipX = isMap && right.values[0] > right.values[columns - 1];
      // Dates beside the rows and the colours are long.
      const left = Math.max(70, Math.min(140, widthOf(down.labels.map(([, label]) => label)) + 12));
      const beside = this.header.times ? 150 : 90;
      const available = Math.max(160, this.place.clientWidth - left - beside);
      const aspect = isMap ? this.mapAspect(down, right) : rows / columns;
      let width = Math.min(available, 1000), height = width * aspect;
      if (height > 560) { height = 560; width = Math.max(60, height / aspect); }
      if (height < 40) height = 40;
      width = Math.min(width, available);
      this.frame = { x: left, y: 10, width, height, flipX, flipY, total: width + left + beside };
      const canvas = this.canvas(this.frame.total, height + 45);
      const context = canvas.getContext("2d");
      context.drawImage(this.image(rows, columns, flipX, flipY), left, 10, width, height);
      if (isMap) await this.drawCoast(context, down, right);
      this.drawAxes(context, down, right);
      if (this.header.range) this.drawColourBar(context);
      this.place.replaceChildren(canvas);
      const limits = this.limits();
      this.drawnLimits = limits.map((value) => this.fixed(value));
      this.bounds.forEach((input, number) => {
        input.parentElement.hidden = Boolean(this.header.times);
        input.value = Number(limits[number].toPrecision(6));
      });
    }

    mapAspect(down, right) {
      const span = (axis) => Math.abs(axis.values.at(-1) - axis.values[0]) || 1;
      return Math.min(2, Math.max(0.2, span(down) / span(right)));
    }

    canvas(width, height) {
      const canvas = document.createElement("canvas");
      const ratio = devicePixelRatio || 1;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      const context = canvas.getContext("2d");
      context.scale(ratio, ratio);
      context.imageSmoothingEnabled = false;
      context.font = "12px system-ui, sans-serif";
      context.fillStyle = textColour();
      context.strokeStyle = textColour();
      return canvas;
    }

    limits() {
      const range = this.header.range, { times } = this.header;
      if (this.kept) {
        const [low, high] = times ? this.kept.map((value) => (value - times.origin) / times.seconds) : this.kept;
        return low === high ? [low - 0.5, high + 0.5] : [low, high];
      }
      if (!range) return [0, 1];
      const isRobust = this.range?.value !== "full";
      let [low, high] = isRobust ? [range.low, range.high] : [range.min, range.max];
      const isBalanced = this.controls.querySelector("[name=colours]")?.value === "balance" && low < 0 && high > 0;
      if (this.header.centred || isBalanced) { // zero has the colour in the middle
        high = Math.max(high, -low);
        low = -high;
      }
      return low === high ? [low - 0.5, high + 0.5] : [low, high];
    }

    image(rows, columns, flipX, flipY) {
      const table = colourTable(this.controls.querySelector("[name=colours]").value);
      const [low, high] = this.limits();
      const image = new ImageData(columns, rows);
      for (let row = 0; row < rows; row++) {
        for (let column = 0; column < columns; column++) {
          const value = this.values[(flipY ? rows - 1 - row : row) * columns + (flipX ? columns - 1 - column : column)];
          if (!Number.isFinite(value)) continue; // missing values stay transparent
          const colour = Math.max(0, Math.min(255, Math.round((255 * (value - low)) / (high - low))));
          const pixel = 4 * (row * columns + column);
          for (let k = 0; k < 3; k++) image.data[pixel + k] = table[3 * colour + k];
          image.data[pixel + 3] = 255;
        }
      }
      const canvas = document.createElement("canvas");
      canvas.width = columns;
      canvas.height = rows;
      canvas.getContext("2d").putImageData(image, 0, 0);
      return canvas;
    }

    // The edges of the picture: half a step beyond the first and the last value.
    edges(axis) {
      const first = axis.values[0], last = axis.values.at(-1);
      const half = axis.values.length > 1 ? (last - first) / (axis.values.length - 1) / 2 : 0.5;
      return [Math.min(first - half, last + half), Math.max(first - half, last + half)];
    }

    async drawCoast(context, down, right) {
      const [south, north] = this.edges(down), [west, east] = this.edges(right);
      const { x, y, width, height } = this.frame;
      const arcs = await readLand();
      context.save();
      context.beginPath();
      context.rect(x, y, width, height);
      context.clip();
      context.strokeStyle = "rgba(0, 0, 0, 0.75)";
      context.lineWidth = 1;
      for (const shift of [-360, 0, 360]) {
        if (east < -180 + shift || west > 180 + shift) continue;
        context.beginPath();
        for (const arc of arcs) {
          arc.forEach(([longitude, latitude], number) => {
            // A line that leaves the world on one side goes on at the other one.
            const jumps = number && Math.abs(longitude - arc[number - 1][0]) > 180;
            const px = x + ((longitude + shift - west) / (east - west)) * width;
            const py = y + ((north - latitude) / (north - south)) * height;
            if (number && !jumps) context.lineTo(px, py); else context.moveTo(px, py);
          });
        }
        context.stroke();
      }
      context.restore();
    }

    drawAxes(context, down, right) {
      const { x, y, width, height, flipX, flipY } = this.frame;
      context.strokeRect(x, y, width, height);
      context.textAlign = "center";
      const room = Math.max(90, widthOf(right.labels.map(([, label]) => label)) + 16);
      const across = Math.max(1, Math.ceil(right.labels.length / Math.max(1, Math.floor(width / room))));
      right.labels.forEach(([step, label], number) => {
        if (number % across) return;
        const share = ((step - right.start) / right.stride + 0.5) / right.values.length;
        context.fillText(label, x + (flipX ? 1 - share : share) * width, y + height + 16);
      });
      context.fillText(`${right.name} ${right.units}`.trim(), x + width / 2, y + height + 32);
      context.textAlign = "right";
      const along = Math.max(1, Math.ceil(down.labels.length / Math.max(1, Math.floor(height / 24))));
      down.labels.forEach(([step, label], number) => {
        if (number % along) return;
        const share = ((step - down.start) / down.stride + 0.5) / down.values.length;
        context.fillText(label.slice(0, 20), x - 6, y + (flipY ? 1 - share : share) * height + 4);
      });
      if (down.labels.some(([, label]) => label.length > 6)) return; // there is no room for the name
      context.save();
      context.translate(14, y + height / 2);
      context.rotate(-Math.PI / 2);
      context.textAlign = "center";
      context.fillText(`${down.name} ${down.units}`.trim().slice(0, Math.floor(height / 6)), 0, 0);
      context.restore();
    }

    drawColourBar(context) {
      const table = colourTable(this.controls.querySelector("[name=colours]").value);
      const [low, high] = this.limits();
      const { x, y, width, height } = this.frame;
      const left = x + width + 14;
      for (let i = 0; i < 256; i++) {
        const k = 3 * (255 - i);
        context.fillStyle = `rgb(${table[k]}, ${table[k + 1]}, ${table[k + 2]})`;
        context.fillRect(left, y + (i * height) / 256, 14, height / 256 + 1);
      }
      context.fillStyle = textColour();
      context.textAlign = "left";
      const values = this.header.times ? [low, (low + high) / 2, high] : roundNumbers(low, high, height > 100 ? 6 : 3);
      for (const value of values) {
        const text = this.header.times ? textOf(this.header, value).slice(0, 16) : tick(value);
        context.fillText(text, left + 18, y + ((high - value) / (high - low)) * height + 4);
      }
      context.fillText(this.header.units.slice(0, 12), left, y + height + 32);
    }

    point(event) {
      if (!this.frame || !this.values || this.header.kind === "line") return;
      const box = this.place.firstElementChild.getBoundingClientRect();
      const { x, y, width, height, total } = this.frame;
      const across = ((event.clientX - box.left) * (total / box.width) - x) / width;
      const along = ((event.clientY - box.top) * ((height + 45) / box.height) - y) / height;
      if (across < 0 || across >= 1 || along < 0 || along >= 1) {
        this.status.textContent = this.summary;
        return;
      }
      const [rows, columns] = this.header.shape;
      const row = Math.floor(along * rows), column = Math.floor(across * columns);
      this.moveTo(this.frame.flipY ? rows - 1 - row : row, this.frame.flipX ? columns - 1 - column : column);
    }

    moveTo(row, column) {
      const [rows, columns] = this.header.shape;
      row = Math.max(0, Math.min(rows - 1, row));
      column = Math.max(0, Math.min(columns - 1, column));
      this.cursor = [row, column];
      const { rows: down, columns: right } = this.header.axes;
      const value = this.values[row * columns + column];
      const show = (text) => {
        this.status.textContent = `${text} at ${down.name} ${labelOf(down, row)}, ${right.name} ${labelOf(right, column)}`;
      };
      clearTimeout(this.rest);
      if (!this.table || !Number.isFinite(value)) return show(fullText(this.header, value));
      show(shownAbout(this.header, value, roundingOf(value, this.table)));
      const isThere = () => this.cursor?.[0] === row && this.cursor[1] === column;
      this.rest = setTimeout(async () => { // the pointer rests: there is time for the exact value
        try {
          const [exact] = await this.exact([row], [column]);
          if (isThere()) show(fullText(this.header, exact));
        } catch { /* the value stays "about" */ }
      }, 120);
    }

    // The exact values of some rows and columns of a picture whose values are packed.
    async exact(rows, columns) {
      const request = this.request;
      const { values } = await readPicture(
        this.url(this.element.dataset.picture, `&rows=${rows.join(",")}&columns=${columns.join(",")}`), request.signal);
      return values;
    }

    key(event) {
      if (this.header?.kind === "line") return this.line?.key(event);
      if (!this.frame) return;
      const [rows, columns] = this.header.shape;
      const [row, column] = this.cursor ?? [rows >> 1, columns >> 1];
      const up = this.frame.flipY ? 1 : -1, right = this.frame.flipX ? -1 : 1;
      const moves = { ArrowUp: [up, 0], ArrowDown: [-up, 0], ArrowLeft: [0, -right], ArrowRight: [0, right] };
      if (event.key in moves) {
        event.preventDefault();
        this.moveTo(row + moves[event.key][0], column + moves[event.key][1]);
      } else if (event.key === "Enter") {
        this.showSeries();
      }
    }

    // The values along a dimension, at the point of the cursor.
    async showSeries() {
      const along = Number(this.along?.value ?? NaN);
      if (Number.isNaN(along) || !this.cursor || !this.element.dataset.series) return;
      const index = [...this.index];
      const { rows: down, columns: right } = this.header.axes;
      const [row, column] = this.cursor;
      index[down.dimension] = down.start + row * down.stride;
      index[right.dimension] = right.start + column * right.stride;
      const base = this.element.dataset.series;
      const joint = base.includes("?") ? "&" : "?";
      const caption = this.series.querySelector("figcaption"), details = this.series.querySelector("details");
      this.series.hidden = false;
      delete this.series.dataset.ready;
      caption.textContent = "Reading …";
      this.seriesRequest?.abort();
      this.seriesRequest = new AbortController();
      try {
        const url = `${base}${joint}index=${index.join(",")}&along=${along}`;
        const { header, values } = await readPicture(url, this.seriesRequest.signal);
        const others = header.index.filter((_, axis) => axis !== along && this.shape[axis] > 1);
        const point = others.map(({ name, label }) => `${name} ${label}`).join(", ");
        const summary = `Along ${header.index[along].name}${point ? ` at ${point}` : ""}. ${header.note}`.trim();
        const say = (text) => { caption.textContent = `${summary} ${text}`; };
        this.drawSeries = () => { this.seriesLine = new Line(this.series.querySelector(".plot"), header, values, say); };
        this.drawSeries();
        const fill = () => { if (details.open) details.querySelector("div").replaceChildren(lineTable(header, values)); };
        details.ontoggle = fill;
        fill();
        caption.textContent = summary;
        this.series.dataset.ready = "true";
      } catch (error) {
        if (error.name !== "AbortError") caption.textContent = error.message;
      }
    }

    // All values of a line, or at most 24 in each direction, as a table for screen readers and for
    // copying. It is filled when it is opened; then exact values are read.
    async fillTable() {
      const details = this.element.querySelector("details.values"), target = details.querySelector("div");
      details.ontoggle = () => { this.paintTable(target); };
      if (details.open) await this.paintTable(target);
    }

    async paintTable(target) {
      if (!target.parentElement.open || !this.values) return;
      if (this.header.kind === "line") return target.replaceChildren(lineTable(this.header, this.values));
      const [rows, columns] = this.header.shape;
      const some = (count) => Array.from({ length: Math.min(24, count) }, (_, i) => Math.floor((i * count) / Math.min(24, count)));
      let valueAt = (row, column) => this.values[row * columns + column];
      if (this.table) {
        target.textContent = "Reading …";
        try {
          const exact = await this.exact(some(rows), some(columns));
          const places = [some(rows), some(columns)].map((numbers) => new Map(numbers.map((number, i) => [number, i])));
          valueAt = (row, column) => exact[places[0].get(row) * places[1].size + places[1].get(column)];
        } catch (error) {
          if (error.name !== "AbortError") target.textContent = error.message;
          return;
        }
      }
      const { rows: down, columns: right } = this.header.axes;
      const head = [down ? `${down.name} \\ ${right.name}` : "", ...some(columns).map((column) => (right ? labelOf(right, column) : ""))];
      target.replaceChildren(tableOf(head, some(rows).map((row) => [
        down ? labelOf(down, row) : this.header.units || "value",
        ...some(columns).map((column) => textOf(this.header, valueAt(row, column))),
      ])));
    }
  }

  // A cell has the colour of what most of its chunks are; it is paler the more are missing. Cells
  // with changed chunks have a mark, or are filled where the grid shows nothing else.
  function drawGrid(canvas) {
    const grid = JSON.parse(canvas.dataset.grid);
    const rows = grid.room.length, columns = grid.room[0].length;
    const size = Math.max(3, Math.min(24, Math.floor(900 / columns), Math.floor(600 / rows)));
    canvas.width = columns * size;
    canvas.height = rows * size;
    const context = canvas.getContext("2d");
    const gap = size > 4 ? 1 : 0;
    const shown = ["native", "virtual", "inline"].filter((kind) => grid[kind]);
    const colours = Object.fromEntries([...shown, "missing", "changed"].map((kind) => [kind, colourOf(`--${kind}`)]));
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const kinds = [[0, "missing"], ...shown.map((kind) => [grid[kind][row][column], kind])];
        const present = kinds.reduce((sum, [count]) => sum + count, 0);
        const kind = kinds.reduce((most, other) => (other[0] > most[0] ? other : most))[1];
        context.globalAlpha = present ? 0.3 + 0.7 * Math.min(1, present / grid.room[row][column]) : 0.25;
        context.fillStyle = colours[kind];
        context.fillRect(column * size, row * size, size - gap, size - gap);
        if (!grid.changed?.[row][column]) continue;
        const inset = shown.length && size > 6 ? 3 : 0;
        context.globalAlpha = 1;
        context.fillStyle = colours.changed;
        context.fillRect(column * size + inset, row * size + inset, size - gap - 2 * inset, size - gap - 2 * inset);
      }
    }
  }

  // A click on a cell asks for the place of its first chunk, through the form below the grid.
  function findChunk(canvas, event) {
    const form = canvas.closest("section")?.querySelector("form.lookup");
    if (!form) return;
    const { axes, lengths, room } = JSON.parse(canvas.dataset.grid);
    const box = canvas.getBoundingClientRect();
    const shares = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
    const cells = [room.length, room[0].length];
    const inputs = form.querySelectorAll("[name=at]");
    for (const input of inputs) input.value = 0;
    axes.forEach((axis, number) => {
      if (axis === null) return;
      const cell = Math.max(0, Math.min(cells[number] - 1, Math.floor(shares[number] * cells[number])));
      inputs[axis].value = Math.ceil((cell * lengths[number]) / cells[number]);
    });
    form.elements.by.value = "chunk";
    form.requestSubmit();
  }

  function beginGrid(canvas) {
    drawGrid(canvas);
    if (canvas.dataset.ready) return;
    canvas.dataset.ready = "true";
    canvas.addEventListener("click", (event) => findChunk(canvas, event));
  }

  function addCopyButton(figure) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(figure.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    figure.querySelector("figcaption").append(button);
  }

  function begin(root) {
    for (const figure of root.querySelectorAll(".recipes figure")) addCopyButton(figure);
    for (const element of root.querySelectorAll(".picture")) new Picture(element);
    for (const canvas of root.querySelectorAll("canvas[data-grid]")) beginGrid(canvas);
  }

  document.addEventListener("DOMContentLoaded", () => begin(document));
  document.addEventListener("htmx:afterSettle", (event) => {
    for (const canvas of event.target.querySelectorAll("canvas[data-grid]")) beginGrid(canvas);
  });
})();
