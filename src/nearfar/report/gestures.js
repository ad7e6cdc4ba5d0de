// What the reader's hands do: pointer, keys, search, lasso. These are methods of Explorer, kept apart for their length.
Object.assign(Explorer.prototype, {
  listen() {
    for (const field of this.fields) this.listenTo(field);
    const on = (selector, type, act) => this.find(selector).addEventListener(type, act);
    on(".by", "change", (event) => { this.by = event.target.value; this.legend(); this.redraw(); });
    on(".search input", "input", (event) => this.search(event.target.value));
    on(".search input", "keydown", (event) => {
      if (event.key === "Enter") this.next();
      if (event.key === "Escape") { event.target.value = ""; this.search(""); }
    });
    on(".lasso", "click", () => this.arm(!this.lasso));
    on(".closer", "click", () => this.zoom(1.5));
    on(".farther", "click", () => this.zoom(1 / 1.5));
    on(".whole", "click", () => this.zoom(0));
    on(".slide input", "input", (event) => {
      const at = Number(event.target.value);
      for (const field of this.fields) { field.layer = Math.min(at, field.layers.length - 1); field.place(); }
      this.find(".slide output").textContent = this.layerName(at);
      this.show(-1);
      this.redraw();
    });
    on(".copy", "click", () => this.copy());
    on(".clear", "click", () => this.pick(null));
    const keys = Array.from(this.root.querySelectorAll(".key"));
    for (const key of keys) {
      key.addEventListener("click", () => {
        const own = Number(key.dataset.class);
        this.alone = this.alone === own ? -1 : own;
        for (const other of keys) other.setAttribute("aria-pressed", String(Number(other.dataset.class) === this.alone));
        this.show(-1);
        this.redraw();
      });
    }
  },

  listenTo(field) {
    const at = (event) => {
      const box = field.box.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    let from = null; // where a drag began, and where the map was then
    field.box.addEventListener("pointermove", (event) => {
      const [x, y] = at(event);
      if (this.path) {
        this.path.points.push([x, y]);
        this.overdraw();
      } else if (from) {
        field.centre = [from.centre[0] - (x - from.x) / field.scale, from.centre[1] + (y - from.y) / field.scale];
        from.moved = from.moved || Math.hypot(x - from.x, y - from.y) > 4;
        if (from.moved) { this.show(-1); field.place(); this.redraw(); }
      } else {
        const i = field.nearest(x, y, 16, (one) => this.counts(one));
        if (i !== this.hover) this.show(i);
      }
    });
    field.box.addEventListener("pointerdown", (event) => {
      const [x, y] = at(event);
      if (event.button !== 0) return;
      field.box.setPointerCapture(event.pointerId);
      if (this.lasso) this.path = { field, points: [[x, y]] };
      else from = { x, y, centre: field.centre, moved: false };
    });
    field.box.addEventListener("pointerup", (event) => {
      const [x, y] = at(event);
      if (this.path) this.enclose();
      else if (from && !from.moved) this.choose(field.nearest(x, y, 16, (one) => this.counts(one)));
      from = null;
    });
    field.box.addEventListener("pointercancel", () => { from = null; this.path = null; this.overdraw(); });
    field.box.addEventListener("pointerleave", () => { if (!this.path) this.show(-1); });
    // a pinch on a trackpad is a wheel with Ctrl; without, the page scrolls
    field.box.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoomAt(field, Math.exp(-event.deltaY / 200), ...at(event));
    }, { passive: false });
    field.box.addEventListener("keydown", (event) => this.key(field, event));
  },

  key(field, event) {
    const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const way = ways[event.key];
    const acts = {
      Enter: () => this.choose(this.hover),
      " ": () => this.choose(this.hover),
      Escape: () => { this.show(-1); this.choose(-1); this.pick(null); this.arm(false); },
      "+": () => this.zoom(1.5),
      "=": () => this.zoom(1.5),
      "-": () => this.zoom(1 / 1.5),
      "0": () => this.zoom(0),
      l: () => this.arm(!this.lasso),
      "/": () => this.find(".search input").focus(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (way) this.show(this.beside(field, way));
    else if (acts[event.key]) acts[event.key]();
    else return;
    if (this.hover >= 0) this.find(".found").textContent = this.name(this.hover);
    event.preventDefault();
  },

  // the point nearest in a direction; from nowhere, the one in the middle
  beside(field, [dx, dy]) {
    const here = this.hover >= 0 ? this.hover : this.chosen;
    const [x, y] = here >= 0 ? [field.x[here], field.y[here]] : [field.width / 2, field.height / 2];
    let best = here;
    let least = Infinity;
    for (let i = 0; i < this.count; i += 1) {
      if (i === here || !this.counts(i)) continue;
      const [u, v] = [field.x[i] - x, field.y[i] - y];
      const along = u * dx + v * dy;
      const aside = Math.abs(u * dy) + Math.abs(v * dx);
      if (here >= 0 && along <= 0.5) continue;
      const far = here >= 0 ? along + 2.5 * aside : Math.hypot(u, v);
      if (far < least) [least, best] = [far, i];
    }
    return best;
  },

  zoom(factor) {
    for (const field of this.fields) {
      field.zoom = factor === 0 ? 1 : Math.min(60, Math.max(1, field.zoom * factor));
      const held = this.hover >= 0 ? this.hover : this.chosen;
      if (field.zoom === 1) field.centre = [field.extent[0] / 2, field.extent[1] / 2];
      else if (held >= 0 && factor > 1) {
        const places = field.layers[Math.round(field.layer)].places;
        field.centre = [places[2 * held], places[2 * held + 1]];
      }
      field.place();
    }
    if (this.hover >= 0) this.show(this.hover);
    this.redraw();
  },

  // what lies under the pointer stays there
  zoomAt(field, factor, x, y) {
    const before = field.scale;
    field.zoom = Math.min(60, Math.max(1, field.zoom * factor));
    const held = [field.centre[0] + (x - field.width / 2) / before, field.centre[1] - (y - field.height / 2) / before];
    field.place();
    field.centre = field.zoom === 1
      ? [field.extent[0] / 2, field.extent[1] / 2]
      : [held[0] - (x - field.width / 2) / field.scale, held[1] + (y - field.height / 2) / field.scale];
    field.place();
    this.show(-1);
    this.redraw();
  },

  search(text) {
    const wanted = text.trim().toLowerCase();
    this.matches = null;
    let count = 0;
    if (wanted) {
      const classes = this.told.classes.map((name) => name.toLowerCase().includes(wanted));
      this.matches = new Uint8Array(this.count);
      for (let i = 0; i < this.count; i += 1) {
        this.matches[i] = this.lower[i].includes(wanted) || classes[this.labels[i]] ? 1 : 0;
        count += this.matches[i];
      }
    }
    this.found = -1;
    this.find(".found").textContent = wanted ? `${count.toLocaleString("en")} of ${this.count.toLocaleString("en")} match` : "";
    this.show(-1);
    this.redraw();
  },

  next() {
    if (!this.matches) return;
    for (let step = 1; step <= this.count; step += 1) {
      const i = (this.found + step) % this.count;
      if (this.counts(i)) { this.found = i; this.choose(i); this.show(i); return; }
    }
  },

  arm(on) {
    this.lasso = on;
    this.path = null;
    this.root.classList.toggle("lassoing", on);
    this.find(".lasso").setAttribute("aria-pressed", String(on));
    this.overdraw();
  },

  // by the parity of edges to the right of a point
  enclose() {
    const { field, points } = this.path;
    this.path = null;
    const picked = new Uint8Array(this.count);
    for (let i = 0; i < this.count; i += 1) {
      const [x, y] = [field.x[i], field.y[i]];
      let inside = false;
      for (let a = 0, b = points.length - 1; a < points.length; b = a, a += 1) {
        const [[ax, ay], [bx, by]] = [points[a], points[b]];
        if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) inside = !inside;
      }
      picked[i] = inside && (this.alone < 0 || this.labels[i] === this.alone) && (!this.matches || this.matches[i]) ? 1 : 0;
    }
    this.pick(picked.some((one) => one) ? picked : null);
    this.arm(false);
  },

  pick(picked) {
    this.picked = picked;
    const box = this.find(".picked");
    box.hidden = !picked;
    if (picked) {
      const names = this.told.names.filter((_, i) => picked[i]);
      box.querySelector(".picked-count").textContent = `${names.length.toLocaleString("en")} selected`;
      box.querySelector("textarea").value = names.join("\n");
    }
    this.redraw();
  },

  async copy() {
    const area = this.find(".picked textarea");
    try {
      await navigator.clipboard.writeText(area.value);
    } catch {
      area.select();
      document.execCommand("copy");
    }
    this.find(".found").textContent = "copied";
  },
});

document.documentElement.classList.add("scripts"); // before anything is measured: tools take room
for (const root of document.querySelectorAll("[data-explorer]")) root.explorer = new Explorer(root);
