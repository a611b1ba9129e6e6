// One picture on a canvas: image, heat-map, outline and cross-hair, with zoom and pan. What a gesture means is up to the viewer.

import { heatPixels, imagePixels, OUTLINE, outline } from "./colours.js";
import { el } from "./dom.js";
import { listen } from "./gestures.js";

const LABELS = { axial: "RALP", coronal: "RSLI", sagittal: "ASPI", restoration: "RALP" }; // left, top, right, bottom
const INK = "rgba(236, 242, 247, .92)";
const BARS = [1, 2, 5, 10, 20, 50, 100, 200]; // millimetres

export class Viewport {
  // ``view`` is {zoom, x, y}; viewports that share it move together.
  constructor(plane, title, view, actions) {
    Object.assign(this, { plane, view, actions, image: null, heat: null, cross: null, volume: false, error: "" });
    this.base = document.createElement("canvas");
    this.layer = document.createElement("canvas");
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.title = el("span", { class: "viewport-title", text: title });
    this.note = el("span", { class: "viewport-note" });
    this.wait = el("p", { class: "viewport-wait", hidden: true });
    this.screen = el("div", { class: "screen", tabindex: "0", role: "group", "aria-label": title }, this.canvas);
    const head = el("figcaption", {}, this.title, this.note);
    this.element = el("figure", { class: "viewport", "data-plane": plane }, this.screen, head, this.wait);
    listen(this);
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.screen);
  }

  close() {
    this.sizes.disconnect();
  }

  say(text, kind = "") {
    this.wait.textContent = text;
    this.wait.hidden = !text;
    this.wait.dataset.kind = kind;
  }

  setImage(plane, window) {
    this.image = plane;
    this.paintImage(window);
  }

  paintImage(window) {
    if (this.image) this._paint(this.base, imagePixels(this.image, window));
  }

  // ``look``: {heat, outline, threshold, full, opacity, ramp}
  setHeat(plane, look) {
    this.heat = plane;
    this.paintHeat(look);
  }

  paintHeat(look) {
    this.shown = Boolean(this.heat && look.heat);
    this.path = null;
    if (!this.shown) return;
    if (look.outline) this.path = outline(this.heat, look.threshold);
    else this._paint(this.layer, heatPixels(this.heat, look));
  }

  _paint(canvas, pixels) {
    canvas.width = pixels.width;
    canvas.height = pixels.height;
    canvas.getContext("2d").putImageData(pixels, 0, 0);
  }

  // From image pixels to device pixels: x = a · column + e, y = d · row + f.
  matrix() {
    const dots = globalThis.devicePixelRatio || 1;
    const width = Math.max(1, Math.round(this.screen.clientWidth * dots));
    const height = Math.max(1, Math.round(this.screen.clientHeight * dots));
    const [rows, columns] = this.image.shape;
    const [tall, wide] = this.image.spacing;
    const fit = Math.min(width / (columns * wide), height / (rows * tall)) * this.view.zoom;
    const [a, d] = [fit * wide, fit * tall];
    const [e, f] = [width / 2 + this.view.x * dots - (columns / 2) * a, height / 2 + this.view.y * dots - (rows / 2) * d];
    return { a, d, e, f, width, height, dots, fit };
  }

  // The pixel under a point of the page, not rounded; null outside the image.
  pixelAt(clientX, clientY) {
    if (!this.image) return null;
    const { a, d, e, f, dots } = this.matrix();
    const box = this.screen.getBoundingClientRect();
    const [row, column] = [((clientY - box.top) * dots - f) / d, ((clientX - box.left) * dots - e) / a];
    const [rows, columns] = this.image.shape;
    return row >= 0 && column >= 0 && row < rows && column < columns ? [Math.floor(row), Math.floor(column)] : null;
  }

  zoomBy(factor, clientX, clientY) {
    const box = this.screen.getBoundingClientRect();
    const x = (clientX ?? box.left + box.width / 2) - box.left - box.width / 2;
    const y = (clientY ?? box.top + box.height / 2) - box.top - box.height / 2;
    const zoom = Math.min(40, Math.max(0.5, this.view.zoom * factor));
    const ratio = zoom / this.view.zoom;
    Object.assign(this.view, { zoom, x: x - (x - this.view.x) * ratio, y: y - (y - this.view.y) * ratio });
    this.actions.moved();
  }

  panBy(dx, dy) {
    this.view.x += dx;
    this.view.y += dy;
    this.actions.moved();
  }

  // Move so that a pixel is in sight.
  reveal(row, column) {
    if (!this.image) return;
    const { a, d, e, f, width, height, dots } = this.matrix();
    const [x, y] = [a * (column + 0.5) + e, d * (row + 0.5) + f];
    if (x > 0 && y > 0 && x < width && y < height) return;
    this.view.x += (width / 2 - x) / dots;
    this.view.y += (height / 2 - y) / dots;
  }

  draw() {
    const context = this.canvas.getContext("2d");
    if (!this.image) {
      this.canvas.width = this.canvas.width; // clears it
      return;
    }
    const place = this.matrix();
    if (this.canvas.width !== place.width || this.canvas.height !== place.height) {
      this.canvas.width = place.width;
      this.canvas.height = place.height;
    }
    const { a, d, e, f } = place;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, place.width, place.height);
    const [rows, columns] = this.image.shape;
    context.imageSmoothingQuality = "high";
    context.drawImage(this.base, e, f, columns * a, rows * d);
    if (this.shown && !this.path) context.drawImage(this.layer, e, f, columns * a, rows * d);
    if (this.shown && this.path) this._outline(context, place);
    if (this.cross) this._crossHair(context, place);
    if (this.volume) this._annotate(context, place);
  }

  _outline(context, { a, d, e, f, dots }) {
    const moved = new Path2D();
    moved.addPath(this.path, new DOMMatrix([a, 0, 0, d, e, f]));
    context.lineCap = "round";
    for (const [width, style] of [
      [3.5 * dots, "rgba(0, 0, 0, .55)"],
      [1.75 * dots, OUTLINE],
    ]) {
      context.lineWidth = width;
      context.strokeStyle = style;
      context.stroke(moved);
    }
  }

  _crossHair(context, { a, d, e, f, width, height, dots }) {
    const [x, y] = [Math.round(a * (this.cross[1] + 0.5) + e) + 0.5, Math.round(d * (this.cross[0] + 0.5) + f) + 0.5];
    const gap = 10 * dots;
    const lines = [
      [0, y, x - gap, y],
      [x + gap, y, width, y],
      [x, 0, x, y - gap],
      [x, y + gap, x, height],
    ];
    for (const [thick, style] of [
      [3 * dots, "rgba(0, 0, 0, .3)"],
      [dots, "rgba(120, 220, 255, .75)"],
    ]) {
      context.lineWidth = thick;
      context.strokeStyle = style;
      context.beginPath();
      for (const [x0, y0, x1, y1] of lines) {
        context.moveTo(x0, y0);
        context.lineTo(x1, y1);
      }
      context.stroke();
    }
  }

  // Where the patient's sides are, and a bar of known length.
  _annotate(context, { width, height, dots, fit }) {
    const text = (label, x, y, align = "center") => {
      context.textAlign = align;
      context.lineWidth = 3 * dots;
      context.strokeStyle = "rgba(0, 0, 0, .7)";
      context.fillStyle = INK;
      context.strokeText(label, x, y);
      context.fillText(label, x, y);
    };
    context.font = `600 ${12 * dots}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    const sides = LABELS[this.plane];
    if (sides) {
      const inset = 12 * dots;
      text(sides[0], inset, height / 2);
      text(sides[1], width / 2, inset);
      text(sides[2], width - inset, height / 2);
      text(sides[3], width / 2, height - inset);
    }
    if (width < 140 * dots) return;
    const length = BARS.findLast((mm) => mm * fit < width / 4);
    if (!length) return;
    const [x, y] = [width - 14 * dots, height - 10 * dots];
    context.fillStyle = INK;
    context.fillRect(x - length * fit, y, length * fit, 2 * dots);
    context.font = `${11 * dots}px system-ui, sans-serif`;
    text(`${length} mm`, x, y - 8 * dots, "right");
  }
}
