"use strict";
// The map answers to the pointer: the nearest dot's image beside it, and one class alone when its key is pressed.
for (const map of document.querySelectorAll("[data-map]")) {
  const { names, labels, classes } = JSON.parse(map.querySelector("script").textContent);
  const field = map.querySelector(".field");
  const svg = field.querySelector("svg");
  const peek = field.querySelector(".peek");
  const tile = peek.querySelector(".tile");
  const caption = peek.querySelector(".caption");
  const dots = Array.from(svg.querySelectorAll("circle"));
  const places = dots.map((dot) => [dot.cx.baseVal.value, dot.cy.baseVal.value]);
  const columns = Number(map.dataset.columns);
  const rows = Number(map.dataset.rows);
  const view = svg.viewBox.baseVal;
  const reach = 40; // in the picture's own units
  let alone = null;
  let shown = -1;

  const nearest = (x, y) => {
    let best = -1;
    let least = reach * reach;
    places.forEach(([px, py], place) => {
      const distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < least && (alone === null || labels[place] === alone)) {
        least = distance;
        best = place;
      }
    });
    return best;
  };

  const hide = () => {
    if (shown >= 0) dots[shown].classList.remove("at");
    shown = -1;
    peek.hidden = true;
  };

  const show = (place) => {
    hide();
    if (place < 0) return;
    shown = place;
    dots[place].classList.add("at");
    const across = columns > 1 ? (100 * (place % columns)) / (columns - 1) : 0;
    const down = rows > 1 ? (100 * Math.floor(place / columns)) / (rows - 1) : 0;
    tile.style.backgroundSize = `${100 * columns}% ${100 * rows}%`;
    tile.style.backgroundPosition = `${across}% ${down}%`;
    const label = labels[place];
    caption.textContent = label === null ? names[place] : `${classes[label]} · ${names[place]}`;
    const box = svg.getBoundingClientRect();
    const scale = box.width / view.width;
    const x = (places[place][0] - view.x) * scale;
    const y = (places[place][1] - view.y) * scale;
    peek.hidden = false;
    peek.style.left = `${Math.max(0, Math.min(box.width - peek.offsetWidth, x + (x > box.width / 2 ? -peek.offsetWidth - 14 : 14)))}px`;
    peek.style.top = `${Math.max(0, Math.min(box.height - peek.offsetHeight, y - peek.offsetHeight / 2))}px`;
  };

  const follow = (event) => {
    const box = svg.getBoundingClientRect();
    const scale = view.width / box.width;
    const place = nearest((event.clientX - box.left) * scale + view.x, (event.clientY - box.top) * scale + view.y);
    if (place !== shown) show(place);
  };
  svg.addEventListener("pointermove", follow);
  svg.addEventListener("pointerdown", follow);
  svg.addEventListener("pointerleave", hide);

  const keys = Array.from(map.querySelectorAll(".key"));
  for (const key of keys) {
    key.addEventListener("click", () => {
      const own = Number(key.dataset.class);
      alone = alone === own ? null : own;
      for (const other of keys) other.setAttribute("aria-pressed", String(Number(other.dataset.class) === alone));
      dots.forEach((dot, place) => dot.classList.toggle("dim", alone !== null && labels[place] !== alone));
      hide();
    });
  }
}
// A table wider than the screen says so.
const measure = () => {
  for (const box of document.querySelectorAll(".scroll")) box.classList.toggle("more", box.scrollWidth > box.clientWidth + 1);
};
measure();
addEventListener("resize", measure);
for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", measure);
document.documentElement.classList.add("scripts");
