// Below a plane of a volume: a slider, and for the axial plane the scores of all slices.

import { button, drawn, el } from "./dom.js";
import { countIn } from "./planes.js";

export function addSlices(port, title, about, go, enlarge) {
  const count = countIn(port.plane, about.grid.shape);
  port.slider = el("input", {
    type: "range",
    min: 0,
    max: count - 1,
    "aria-label": `${title} slice`,
    oninput: () => go(Number(port.slider.value)),
  });
  const attributes = {
    class: "tool quiet",
    "aria-label": `Enlarge ${title.toLowerCase()}`,
    title: `Enlarge ${title.toLowerCase()}`,
    "aria-pressed": "false",
  };
  port.enlarge = button("expand", "", enlarge, attributes);
  const strip = port.plane === "axial" ? scores(about, count) : null;
  port.element.append(el("div", { class: "slices" }, strip, port.slider), port.enlarge);
}

function scores({ slice_scores: rows, image_threshold: threshold }, count) {
  const top = Math.max(...rows.map((row) => row.score ?? 0), threshold ?? 0) || 1;
  const bars = rows.map((row) => {
    const height = (20 * Math.max(0, row.score ?? 0)) / top;
    return drawn("rect", { x: row.index + 0.1, y: 20 - height, width: 0.8, height, class: row.flag ? "flagged" : "plain" });
  });
  return drawn(
    "svg",
    { class: "strip", viewBox: `0 0 ${count} 20`, preserveAspectRatio: "none", "aria-hidden": "true" },
    ...bars,
  );
}
