// Shows one case: an image, or a volume in three planes with a common cross-hair; the restoration beside it where there is one.

import { json } from "./api.js";
import { countMarked } from "./colours.js";
import { Controls } from "./controls.js";
import { el, number } from "./dom.js";
import { address, countIn, firstPlace, indexIn, pixelIn, plane, voxelAt, withIndex } from "./planes.js";
import { Restoration } from "./restoration.js";
import { addSlices } from "./slices.js";
import { Viewport } from "./viewport.js";

const TITLES = { axial: "Axial", coronal: "Coronal", sagittal: "Sagittal", restoration: "Restoration" };

export class Viewer {
  constructor() {
    this.controls = new Controls(this);
    this.notice = el("p", { class: "notice warn", hidden: true });
    this.grid = el("div", { class: "viewports" });
    this.readout = el("p", { class: "readout", text: " " });
    this.marked = el("p", { class: "marked", text: " " });
    this.empty = el("p", { class: "empty", text: "Choose a case from the list." });
    this.element = el(
      "section",
      { class: "viewer", "aria-label": "Viewer" },
      this.controls.element,
      this.notice,
      this.empty,
      this.grid,
      el("div", { class: "status" }, this.readout, this.marked, this.controls.legend),
    );
    this.restoration = new Restoration(this);
    this.ports = new Map();
    this._clear();
  }

  _clear() {
    for (const port of this.ports.values()) port.close();
    this.ports = new Map();
    this.grid.replaceChildren();
    for (const name of ["compare", "big"]) delete this.grid.dataset[name];
    this.big = null;
  }

  close() {
    this.stop?.abort();
    this._clear();
  }

  // ``job``: the job's JSON. Returns the case with its grid and findings.
  async show(job, item) {
    this.stop?.abort();
    this.stop = new AbortController();
    const about = await json(item.url, { signal: this.stop.signal });
    this.job = job;
    this.about = about;
    this._clear();
    this.empty.textContent = about.error ? `This case could not be scored: ${about.error}` : "";
    this.empty.hidden = Boolean(about.grid);
    this.controls.element.inert = !about.grid;
    this._notice(about);
    this.readout.textContent = this.marked.textContent = " ";
    if (!about.grid) return about;
    this.window = [...about.grid.window];
    this.voxel = firstPlace(about);
    this.controls.calibrate(job.url, about.pixel_threshold, about.heat_scale);
    this.controls.setHeat(about.unlike ? false : this.controls.look.heat || this.hidden);
    this.hidden = about.unlike; // shown again at the next case
    for (const name of about.grid.volume ? ["axial", "coronal", "sagittal"] : ["axial"]) this._add(name, { zoom: 1, x: 0, y: 0 });
    this.grid.dataset.layout = about.grid.volume ? "volume" : "image";
    this.restoration.show();
    await this._refresh();
    return about;
  }

  _notice(about) {
    const ways = { grey: "grey values", features: "what it shows" };
    const how = (about.differs ?? []).map((part) => ways[part] ?? part).join(" and ") || "its acquisition";
    this.notice.textContent =
      `This image is unlike those the model has learned from (${how}): another scanner, protocol or body part. ` +
      "Its score and heat-map say nothing about disease, so the heat-map is hidden.";
    this.notice.hidden = !about.unlike;
  }

  _add(name, view) {
    const title = name === "axial" && !this.about.grid.volume ? "Image" : TITLES[name];
    const port = new Viewport(name, title, view, this._actions());
    port.volume = this.about.grid.volume;
    this.ports.set(name, port);
    if (port.volume && name !== "restoration")
      addSlices(
        port,
        TITLES[name],
        this.about,
        (index) => this._go(withIndex(name, this.voxel, index)),
        () => this._enlarge(name),
      );
    this.grid.append(port.element);
    return port;
  }

  _enlarge(name) {
    this.big = this.big === name ? null : name;
    for (const [other, port] of this.ports) {
      port.element.hidden = Boolean(this.big) && other !== this.big && other !== "restoration";
      port.enlarge?.setAttribute("aria-pressed", String(other === this.big));
    }
    this.grid.dataset.big = this.big ?? "";
    this._draw();
  }

  _actions() {
    return {
      tool: () => this.controls.tool,
      moved: () => this._draw(),
      window: (dx, dy) => this._grade(dx, dy),
      step: (port, steps) => this._step(port.plane, steps),
      place: (port, pixel) => this._place(port, pixel),
      hover: (port, pixel) => this._hover(port, pixel),
      reset: () => this.reset(),
    };
  }

  _step(name, steps) {
    const plane_ = name === "restoration" ? "axial" : name;
    const last = countIn(plane_, this.about.grid.shape) - 1;
    const index = Math.min(last, Math.max(0, indexIn(plane_, this.voxel) + steps));
    this._go(withIndex(plane_, this.voxel, index));
  }

  _place(port, pixel) {
    if (!this.about.grid.volume || port.plane === "restoration") return;
    this._go(voxelAt(port.plane, pixel, indexIn(port.plane, this.voxel), this.about.grid.shape));
  }

  // Jump to a voxel and make sure that it can be seen.
  goTo(voxel) {
    if (!this.about?.grid || !voxel) return;
    this._go(voxel);
    this.pin = this.about.grid.volume ? null : voxel;
    for (const port of this.ports.values())
      port.reveal(...pixelIn(port.plane === "restoration" ? "axial" : port.plane, voxel, this.about.grid.shape));
    this._draw();
  }

  _go(voxel) {
    this.voxel = voxel;
    this._refresh();
  }

  // Drag to the right: a wider window; drag down: a higher level, so a darker image.
  _grade(dx, dy) {
    const [low, high] = this.about.grid.window;
    const unit = (high - low) / 300 || 1 / 300;
    const width = Math.max(unit, this.window[1] - this.window[0] + dx * unit);
    const level = (this.window[0] + this.window[1]) / 2 + dy * unit;
    this.window = [level - width / 2, level + width / 2];
    for (const port of this.ports.values()) port.paintImage(this.window);
    this.say(`window ${number(width)}, level ${number(level)}`);
    this._draw();
  }

  reset() {
    if (!this.about?.grid) return;
    this.window = [...this.about.grid.window];
    for (const port of this.ports.values()) {
      Object.assign(port.view, { zoom: 1, x: 0, y: 0 });
      port.paintImage(this.window);
    }
    this._draw();
  }

  // Colours or threshold changed: nothing is asked of the server.
  change() {
    for (const port of this.ports.values()) port.paintHeat(this.controls.look);
    this._draw();
  }

  _draw() {
    if (this.planned) return;
    this.planned = requestAnimationFrame(() => {
      this.planned = 0;
      for (const port of this.ports.values()) {
        const name = port.plane === "restoration" ? "axial" : port.plane;
        const shown = this.about.grid.volume || this.pin;
        port.cross = shown ? pixelIn(name, this.pin ?? this.voxel, this.about.grid.shape) : null;
        port.draw();
      }
      this._count();
    });
  }

  _count() {
    const heat = this.controls.look.heat && this.ports.get("axial")?.heat;
    if (!heat) {
      this.marked.textContent = "";
      return;
    }
    const marked = countMarked(heat, this.controls.look.threshold);
    const share = (100 * marked) / heat.data.length;
    const percent = share.toFixed(share < 10 ? 1 : 0);
    this.marked.textContent = `${marked.toLocaleString("en")} pixels above the threshold (${percent} %)`;
  }

  async _refresh() {
    this.pin = null;
    await Promise.all([...this.ports.values()].map((port) => this._load(port)));
  }

  // One request at a time per viewport: while the reader scrolls, only the newest place counts.
  async _load(port) {
    const { about } = this;
    const name = port.plane === "restoration" ? "axial" : port.plane;
    port.wanted = indexIn(name, this.voxel);
    this._label(port, name);
    if (port.busy || port.have === port.wanted) return this._draw();
    port.busy = true;
    try {
      while (port.have !== port.wanted && this.ports.get(port.plane) === port) {
        const index = port.wanted;
        if (port.plane === "restoration") await this.restoration.load(port, about, index);
        else await this._loadPlane(port, about, name, index);
        port.have = index;
        this._draw();
      }
    } catch (err) {
      if (this.ports.get(port.plane) === port) port.say(err.message, "error");
    } finally {
      port.busy = false;
    }
  }

  async _loadPlane(port, about, name, index) {
    const [image, heat] = await Promise.all([
      plane(address(about, "image", name, index)),
      plane(address(about, "heat", name, index)),
    ]);
    if (this.about !== about) return;
    this.controls.reach(heat.scale * 65534 + heat.offset);
    port.setImage(image, this.window);
    port.setHeat(heat, this.controls.look);
    port.say("");
    if (!about.grid.volume) return;
    for (const next of [index + 1, index - 1]) {
      if (next < 0 || next >= countIn(name, about.grid.shape)) continue;
      for (const kind of ["image", "heat"]) plane(address(about, kind, name, next)).catch(() => {});
    }
  }

  _label(port, name) {
    const volume = this.about.grid.volume;
    const index = indexIn(name, this.voxel);
    const place = volume
      ? `${index + 1} of ${countIn(name, this.about.grid.shape)}`
      : `${this.about.grid.shape[2]} × ${this.about.grid.shape[1]}`;
    port.note.textContent = place;
    port.screen.setAttribute("aria-label", `${port.title.textContent}, ${volume ? "slice " : ""}${place}`);
    if (!port.slider) return;
    port.slider.value = index;
    port.slider.setAttribute("aria-valuetext", place);
  }

  addRestoration() {
    const port = this._add("restoration", this.ports.get("axial").view);
    this.grid.dataset.compare = "on";
    this._load(port);
  }

  removeRestoration() {
    this.ports.get("restoration").close();
    this.ports.get("restoration").element.remove();
    this.ports.delete("restoration");
    delete this.grid.dataset.compare;
    this._draw();
  }

  _hover(port, pixel) {
    if (!pixel) return this.say("");
    const [row, column] = pixel;
    const [, columns, channels] = port.image.shape;
    const value = (found, place) =>
      found && found.data[place] !== 65535 ? number(found.data[place] * found.scale + found.offset) : "–";
    const parts = [`row ${row}, column ${column}`, `value ${value(port.image, (row * columns + column) * channels)}`];
    if (port.heat) parts.push(`heat ${value(port.heat, row * columns + column)}`);
    this.say(parts.join(" · "));
  }

  say(text) {
    this.readout.textContent = text || " ";
  }
}
