// The explorer: points on canvas, redrawn only when something moved; what the pointer does is drawn on a second canvas above.
const unpacked = (text, Kind) => {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i += 1) bytes[i] = raw.charCodeAt(i);
  return new Kind(bytes.buffer);
};
// what any CSS colour is in red, green and blue
const rgb = (() => {
  const c = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const known = new Map();
  return (colour) => {
    if (!known.has(colour)) {
      c.clearRect(0, 0, 1, 1);
      c.fillStyle = colour;
      c.fillRect(0, 0, 1, 1);
      known.set(colour, Array.from(c.getImageData(0, 0, 1, 1).data.slice(0, 3)));
    }
    return known.get(colour);
  };
})();
const made = (tag, className, text) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};

// One map of the explorer: where its points are on the screen, and who is nearest a place.
class Field {
  constructor(root, told, count) {
    this.box = root.querySelector(".canvas");
    [this.base, this.over] = this.box.querySelectorAll(":scope > canvas");
    this.peek = this.box.querySelector(".peek");
    this.title = told.title;
    this.layers = told.layers.map((layer) => ({ name: layer.name, places: unpacked(layer.places, Uint16Array) }));
    this.near = unpacked(told.near, Uint32Array);
    this.each = told.count;
    this.said = told.said === null ? null : unpacked(told.said, Int16Array);
    this.numbers = Object.fromEntries(Object.entries(told.numbers).map(([name, n]) => [name, { ...n, level: unpacked(n.level, Uint8Array) }]));
    this.extent = told.extent.map((side) => Math.max(side, 1));
    this.count = count;
    this.x = new Float32Array(count);
    this.y = new Float32Array(count);
    this.zoom = 1;
    this.centre = [this.extent[0] / 2, this.extent[1] / 2];
    this.layer = this.layers.length - 1;
    this.ratio = Math.min(2, Math.max(0.7, this.extent[0] / this.extent[1]));
  }

  resize() {
    const box = this.box.getBoundingClientRect();
    this.width = Math.max(1, box.width);
    this.height = Math.max(1, box.height);
    this.pixel = Math.min(2, window.devicePixelRatio || 1);
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(this.width * this.pixel);
      canvas.height = Math.round(this.height * this.pixel);
    }
    this.place();
  }

  // between two checkpoints points are on their way
  place() {
    const low = Math.floor(this.layer);
    const high = Math.min(low + 1, this.layers.length - 1);
    const share = this.layer - low;
    const [from, to] = [this.layers[low].places, this.layers[high].places];
    const margin = 14;
    this.scale = this.zoom * Math.min((this.width - 2 * margin) / this.extent[0], (this.height - 2 * margin) / this.extent[1]);
    const [cx, cy] = this.centre;
    for (let i = 0; i < this.count; i += 1) {
      const px = from[2 * i] + share * (to[2 * i] - from[2 * i]);
      const py = from[2 * i + 1] + share * (to[2 * i + 1] - from[2 * i + 1]);
      this.x[i] = this.width / 2 + (px - cx) * this.scale;
      this.y[i] = this.height / 2 - (py - cy) * this.scale;
    }
    this.sorted();
  }

  // points by cells of the screen, so that the nearest is found without looking at all of them
  sorted() {
    const cell = 24;
    this.cell = cell;
    this.columns = Math.ceil(this.width / cell) + 2;
    this.rows = Math.ceil(this.height / cell) + 2;
    const starts = new Uint32Array(this.columns * this.rows + 1);
    const cells = new Int32Array(this.count);
    for (let i = 0; i < this.count; i += 1) {
      const column = Math.floor(this.x[i] / cell) + 1;
      const row = Math.floor(this.y[i] / cell) + 1;
      const inside = column >= 0 && column < this.columns && row >= 0 && row < this.rows;
      cells[i] = inside ? row * this.columns + column : -1;
      if (inside) starts[cells[i] + 1] += 1;
    }
    for (let i = 1; i < starts.length; i += 1) starts[i] += starts[i - 1];
    const next = starts.slice();
    this.members = new Uint32Array(starts[starts.length - 1]);
    for (let i = 0; i < this.count; i += 1) if (cells[i] >= 0) this.members[next[cells[i]]++] = i;
    this.starts = starts;
  }

  nearest(x, y, reach, counts) {
    let best = -1;
    let least = reach * reach;
    const column = Math.floor(x / this.cell) + 1;
    const row = Math.floor(y / this.cell) + 1;
    const around = Math.ceil(reach / this.cell);
    for (let r = Math.max(0, row - around); r <= Math.min(this.rows - 1, row + around); r += 1) {
      for (let c = Math.max(0, column - around); c <= Math.min(this.columns - 1, column + around); c += 1) {
        const at = r * this.columns + c;
        for (let m = this.starts[at]; m < this.starts[at + 1]; m += 1) {
          const i = this.members[m];
          const distance = (this.x[i] - x) ** 2 + (this.y[i] - y) ** 2;
          if (distance < least && counts(i)) [least, best] = [distance, i];
        }
      }
    }
    return best;
  }

  // Pixels are blended here, not by the canvas: twenty thousand dots are then a few milliseconds, with or without a graphics card.
  draw(colours, palette, dim, radius, paper) {
    const c = this.base.getContext("2d");
    const { width, height } = this.base;
    if (!this.image || this.image.width !== width || this.image.height !== height) this.image = c.createImageData(width, height);
    const { data } = this.image;
    new Uint32Array(data.buffer).fill((255 << 24) | (paper[2] << 16) | (paper[1] << 8) | paper[0]);
    const disc = this.disc(radius * this.pixel);
    const reach = Math.ceil(radius * this.pixel);
    for (const [dimmed, strength] of [[1, 0.18], [0, 0.82]]) { // those that are dimmed lie below
      if (dimmed && !dim) continue;
      for (let i = 0; i < this.count; i += 1) {
        if ((dim ? dim[i] : 0) !== dimmed) continue;
        const x = Math.round(this.x[i] * this.pixel);
        const y = Math.round(this.y[i] * this.pixel);
        if (x < reach || x >= width - reach || y < reach || y >= height - reach) continue;
        const [r, g, b] = palette[colours[i]];
        const from = 4 * (y * width + x);
        for (let d = 0; d < disc.length; d += 3) {
          const at = from + 4 * (disc[d + 1] * width + disc[d]);
          const a = disc[d + 2] * strength;
          data[at] += (r - data[at]) * a;
          data[at + 1] += (g - data[at + 1]) * a;
          data[at + 2] += (b - data[at + 2]) * a;
        }
      }
    }
    c.putImageData(this.image, 0, 0);
  }

  // (dx, dy, how much of the pixel a disc covers), for every pixel of a disc round the middle of one
  disc(radius) {
    if (this.discOf === radius) return this.discs;
    const found = [];
    const reach = Math.ceil(radius);
    for (let dy = -reach; dy <= reach; dy += 1) {
      for (let dx = -reach; dx <= reach; dx += 1) {
        const covered = Math.max(0, Math.min(1, radius + 0.5 - Math.hypot(dx, dy)));
        if (covered > 0) found.push(dx, dy, covered);
      }
    }
    this.discOf = radius;
    this.discs = new Float32Array(found);
    return this.discs;
  }
}
