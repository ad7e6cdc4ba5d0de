// What a reader does with the maps of one explorer: all of its fields show the same instances and answer together.
class Explorer {
  constructor(root) {
    this.root = root;
    this.told = JSON.parse(root.querySelector("script").textContent);
    const { names, labels, fields } = this.told;
    this.count = names.length;
    this.labels = unpacked(labels, Int16Array);
    this.lower = names.map((name) => name.toLowerCase());
    this.fields = Array.from(root.querySelectorAll(".field"), (node, at) => new Field(node, fields[at], this.count));
    const ratio = Math.min(...this.fields.map((field) => field.ratio));
    for (const field of this.fields) field.box.style.setProperty("--ratio", String(ratio));
    this.sheets = [];
    this.hover = -1;
    this.chosen = -1;
    this.alone = -1;
    this.matches = null;
    this.picked = null;
    this.lasso = false;
    this.path = null;
    this.by = "";
    this.find = (selector) => root.querySelector(selector);
    this.menu();
    this.listen();
    this.restyle();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle());
    new ResizeObserver(() => this.restyle()).observe(root);
  }

  menu() {
    const titles = { label: "class", error: "right or wrong by neighbours", nats: "nats of its views", kept: "kept as a negative" };
    const has = {
      label: this.told.classes.length > 0,
      error: this.fields.some((field) => field.said),
      nats: this.fields.some((field) => field.numbers.nats),
      kept: this.fields.some((field) => field.numbers.kept),
    };
    const select = this.find(".by");
    for (const [value, title] of Object.entries(titles)) {
      if (!has[value]) continue;
      const option = made("option", "", title);
      option.value = value;
      select.append(option);
    }
    if (!select.options.length) select.append(made("option", "", "nothing"));
    this.by = select.value;
    const most = Math.max(...this.fields.map((field) => field.layers.length));
    const slide = this.find(".slide");
    slide.hidden = most < 2;
    const range = slide.querySelector("input");
    range.max = String(most - 1);
    range.value = range.max;
    slide.querySelector("output").textContent = this.layerName(most - 1);
  }

  layerName(at) {
    const { layers } = this.fields[0];
    const low = Math.floor(at);
    return at === low ? layers[low].name : `${layers[low].name} →`;
  }

  // ------------------------------------------------------------------------------------------ drawing

  restyle() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    this.ink = read("--ink");
    this.paper = rgb(read("--paper"));
    this.near = read("--near");
    this.quiet = read("--quiet");
    this.good = read("--good");
    this.bad = read("--bad");
    this.classes = Array.from(this.root.querySelectorAll(".key .dot"), (dot) => getComputedStyle(dot).backgroundColor);
    this.ramp = Array.from({ length: 16 }, (_, i) => `oklch(${0.45 + 0.4 * (i / 15)} ${0.16} ${280 - 190 * (i / 15)})`);
    for (const field of this.fields) field.resize();
    // dots as large as leaves room between them, on any screen
    const area = this.fields[0].width * this.fields[0].height;
    this.radius = Math.min(4.2, Math.max(1.6, 0.32 * Math.sqrt(area / this.count)));
    this.legend();
    this.redraw();
  }

  colours(field) {
    const codes = new Uint16Array(this.count);
    if (this.by === "error" && field.said) {
      for (let i = 0; i < this.count; i += 1) codes[i] = field.said[i] < 0 ? 2 : field.said[i] === this.labels[i] ? 0 : 1;
      return [codes, [this.good, this.bad, this.quiet]];
    }
    const numbers = field.numbers[this.by];
    if (numbers) {
      for (let i = 0; i < this.count; i += 1) codes[i] = numbers.level[i] === 255 ? 16 : Math.min(15, Math.floor((numbers.level[i] * 16) / 255));
      return [codes, [...this.ramp, this.quiet]];
    }
    const last = this.classes.length;
    for (let i = 0; i < this.count; i += 1) codes[i] = this.labels[i] < 0 || this.labels[i] >= last ? last : this.labels[i];
    return [codes, [...this.classes, last ? this.quiet : this.near]];
  }

  dimmed() {
    if (this.alone < 0 && !this.matches && !this.picked) return null;
    const dim = new Uint8Array(this.count);
    for (let i = 0; i < this.count; i += 1) dim[i] = this.counts(i) ? 0 : 1;
    return dim;
  }

  counts(i) {
    return (this.alone < 0 || this.labels[i] === this.alone) && (!this.matches || this.matches[i] === 1) && (!this.picked || this.picked[i] === 1);
  }

  redraw() {
    const dim = this.dimmed();
    for (const field of this.fields) {
      const [codes, palette] = this.colours(field);
      field.draw(codes, palette.map(rgb), dim, this.radius, this.paper);
    }
    this.overdraw();
  }

  overdraw() {
    for (const field of this.fields) {
      const c = field.over.getContext("2d");
      c.setTransform(field.pixel, 0, 0, field.pixel, 0, 0);
      c.clearRect(0, 0, field.width, field.height);
      c.strokeStyle = this.ink;
      if (this.chosen >= 0) {
        c.lineWidth = 1;
        for (const i of this.neighbours(field, this.chosen)) {
          c.beginPath();
          c.moveTo(field.x[this.chosen], field.y[this.chosen]);
          c.lineTo(field.x[i], field.y[i]);
          c.stroke();
          this.ring(c, field, i, this.radius + 1.5, 1.5);
        }
        this.ring(c, field, this.chosen, this.radius + 4, 2.5);
      }
      if (this.hover >= 0) this.ring(c, field, this.hover, this.radius + 3, 2);
      if (this.path && this.path.field === field) {
        c.setLineDash([5, 4]);
        c.lineWidth = 1.5;
        c.beginPath();
        this.path.points.forEach(([x, y], at) => (at ? c.lineTo(x, y) : c.moveTo(x, y)));
        c.closePath();
        c.stroke();
        c.setLineDash([]);
      }
    }
  }

  ring(c, field, i, radius, width) {
    c.lineWidth = width;
    c.beginPath();
    c.arc(field.x[i], field.y[i], radius, 0, 2 * Math.PI);
    c.stroke();
  }

  legend() {
    const box = this.find(".legend-of");
    box.replaceChildren();
    if (this.by === "error") {
      for (const field of this.fields.filter((one) => one.said)) {
        const known = field.said.reduce((sum, said) => sum + (said >= 0 ? 1 : 0), 0);
        const right = field.said.reduce((sum, said, i) => sum + (said >= 0 && said === this.labels[i] ? 1 : 0), 0);
        const line = made("p", "", `${this.fields.length > 1 ? `${field.title}: ` : ""}${right.toLocaleString("en")} of ${known.toLocaleString("en")} right by the vote of their 20 nearest here`);
        box.append(line);
      }
      const key = made("p");
      for (const [colour, words] of [[this.good, "right"], [this.bad, "wrong"]]) {
        const dot = made("i", "dot");
        dot.style.background = colour;
        key.append(dot, `${words}  `);
      }
      box.append(key);
      return;
    }
    const about = { nats: "InfoNCE of each instance among 256, in nats; one value proves nothing", kept: "share of anchors that keep it as a negative; grey: was not a candidate" };
    for (const field of this.fields) {
      const numbers = field.numbers[this.by];
      if (!numbers) continue;
      const scale = made("div", "scale");
      const bar = made("i");
      bar.style.background = `linear-gradient(to right, ${this.ramp.join(",")})`;
      scale.append(made("span", "", numbers.low.toPrecision(3)), bar, made("span", "", numbers.high.toPrecision(3)));
      if (this.fields.length > 1) box.append(made("p", "", field.title));
      box.append(scale);
    }
    if (about[this.by]) box.append(made("p", "", about[this.by]));
  }

  // ------------------------------------------------------------------------------------- one instance

  neighbours(field, i) {
    return Array.from(field.near.subarray(i * field.each, (i + 1) * field.each));
  }

  name(i) {
    const label = this.labels[i];
    return label < 0 ? this.told.names[i] : `${this.told.classes[label] ?? label} · ${this.told.names[i]}`;
  }

  about(field, i) {
    const said = [];
    if (field.said && field.said[i] >= 0 && field.said[i] !== this.labels[i]) said.push(`taken for ${this.told.classes[field.said[i]] ?? field.said[i]}`);
    for (const [name, unit] of [["nats", "nats"], ["kept", "kept"]]) {
      const numbers = field.numbers[name];
      if (!numbers || numbers.level[i] === 255) continue;
      const value = numbers.low + ((numbers.high - numbers.low) * numbers.level[i]) / 254;
      said.push(name === "kept" ? `kept by ${Math.round(100 * value)}%` : `${value.toPrecision(3)} ${unit}`);
    }
    return said.join(", ");
  }

  picture(canvas, i) {
    const { sheets, tile, columns, each } = this.told.atlas;
    const at = Math.floor(i / each);
    if (!this.sheets[at]) {
      this.sheets[at] = new Image();
      this.sheets[at].src = sheets[at];
    }
    const sheet = this.sheets[at];
    const paint = () => {
      if (Number(canvas.dataset.place) !== i) return;
      const c = canvas.getContext("2d");
      c.imageSmoothingEnabled = !this.told.crisp;
      c.drawImage(sheet, ((i % each) % columns) * tile, Math.floor((i % each) / columns) * tile, tile, tile, 0, 0, canvas.width, canvas.height);
    };
    canvas.dataset.place = String(i);
    if (sheet.complete) paint();
    else sheet.decode().then(paint);
  }

  show(i) {
    this.hover = i;
    for (const field of this.fields) {
      const { peek } = field;
      peek.hidden = i < 0;
      if (i < 0) continue;
      this.picture(peek.querySelector(".tile"), i);
      const more = this.about(field, i);
      peek.querySelector(".caption").textContent = this.name(i) + (more ? ` · ${more}` : "");
      const [x, y] = [field.x[i], field.y[i]];
      const [w, h] = [peek.offsetWidth, peek.offsetHeight];
      peek.style.left = `${Math.max(0, Math.min(field.width - w, x + (x > field.width / 2 ? -w - 14 : 14)))}px`;
      peek.style.top = `${Math.max(0, Math.min(field.height - h, y - h / 2))}px`;
    }
    this.overdraw();
  }

  choose(i) {
    this.chosen = i;
    const box = this.find(".chosen-point");
    box.hidden = i < 0;
    box.replaceChildren();
    if (i >= 0) {
      box.append(made("h4", "", this.name(i)));
      for (const field of this.fields) {
        box.append(made("p", "", this.fields.length > 1 ? `nearest by ${field.title}` : "nearest"));
        const tiles = made("div", "tiles");
        for (const near of this.neighbours(field, i)) {
          const known = this.labels[i] >= 0 && this.labels[near] >= 0;
          const button = made("button", known ? (this.labels[near] === this.labels[i] ? "same" : "other") : "");
          button.type = "button";
          button.title = this.name(near);
          button.setAttribute("aria-label", this.name(near));
          const canvas = made("canvas", "tile");
          canvas.width = canvas.height = 48;
          this.picture(canvas, near);
          button.append(canvas);
          button.addEventListener("click", () => this.choose(near));
          button.addEventListener("pointerenter", () => this.show(near));
          tiles.append(button);
        }
        box.append(tiles);
      }
    }
    this.overdraw();
  }
}
