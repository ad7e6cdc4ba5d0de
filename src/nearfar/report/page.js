"use strict";
// A table wider than the screen says so.
const measure = () => {
  for (const box of document.querySelectorAll(".scroll")) box.classList.toggle("more", box.scrollWidth > box.clientWidth + 1);
};
measure();
addEventListener("resize", measure);
for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", measure);
