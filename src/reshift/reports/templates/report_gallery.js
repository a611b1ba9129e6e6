// Gallery: one page of cases at a time, so that thousands of cases cost no more than a screenful.

const PAGE_SIZE = 20;
const CARDS_KEPT = 200;
const OUTLINE_ZOOM = 4;
// Inferno: dark to bright in even perceptual steps, readable in grey and with colour blindness.
const ANCHORS = ["000004", "210c4a", "57106e", "8a226a", "bc3754", "e45a31", "f98e09", "f9cb35", "fcffa4"];
const COLOURS = makeColours();
const anyMask = report.cases.some((item) => item.mask);
const overlay = { level: 0, opacity: 0.6 };
const view = { filter: "all", sort: "score-desc", page: 0 };
const cards = new Map();

/** 256 colours, one for each grey level of a stored map. */
function makeColours() {
  const anchors = ANCHORS.map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, grey) => {
    const place = grey / 255 * (anchors.length - 1);
    const left = Math.min(Math.floor(place), anchors.length - 2);
    return anchors[left].map((part, i) => Math.round(part + (anchors[left + 1][i] - part) * (place - left)));
  });
}

async function loadImage(base64) {
  if (!base64) return null;
  const image = new Image();
  image.src = `data:image/${base64.startsWith("/9j/") ? "jpeg" : "png"};base64,${base64}`;
  try {
    await image.decode();
  } catch {
    return null;
  }
  return image;
}

function readGreys(image) {
  const canvas = el("canvas", { width: image.naturalWidth, height: image.naturalHeight });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  return { width: canvas.width, height: canvas.height, values: data.filter((_, i) => i % 4 === 0) };
}

/** Paint a map; greys under `level` stay transparent. Level 0 paints everything. */
function paintHeat(canvas, greys, level) {
  Object.assign(canvas, { width: greys.width, height: greys.height });
  const context = canvas.getContext("2d");
  const target = context.createImageData(greys.width, greys.height);
  greys.values.forEach((grey, i) => {
    const [red, green, blue] = COLOURS[grey];
    target.data[4 * i] = red;
    target.data[4 * i + 1] = green;
    target.data[4 * i + 2] = blue;
    target.data[4 * i + 3] = grey >= level ? 255 : 0;
  });
  context.putImageData(target, 0, 0);
}

function paintOverlay(card) {
  const { image, greys, overlayCanvas } = card;
  if (!image || !greys) return;
  Object.assign(overlayCanvas, { width: image.naturalWidth * 2, height: image.naturalHeight * 2 });
  const context = overlayCanvas.getContext("2d");
  const layer = el("canvas");
  paintHeat(layer, greys, Math.max(1, overlay.level));
  context.drawImage(image, 0, 0, overlayCanvas.width, overlayCanvas.height);
  context.globalAlpha = overlay.opacity;
  context.imageSmoothingEnabled = false;
  context.drawImage(layer, 0, 0, overlayCanvas.width, overlayCanvas.height);
}

/** Mistakes are shown worst first: the normal image scored highest, the abnormal one scored lowest. */
function worstFirst(kind) {
  const order = { fp: "score-desc", fn: "score-asc" }[kind];
  if (order) view.sort = byId("sort").value = order;
}

/** Draw the border between mask and background as lines, so that it stays thin at any size. */
function paintOutline(canvas, image, mask) {
  const { width, height, values } = mask;
  Object.assign(canvas, { width: width * OUTLINE_ZOOM, height: height * OUTLINE_ZOOM });
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  const inside = (x, y) => x >= 0 && y >= 0 && x < width && y < height && values[y * width + x] > 127;
  const path = new Path2D();
  for (let y = 0; y <= height; y += 1) {
    for (let x = 0; x <= width; x += 1) {
      const here = inside(x, y);
      const [px, py] = [x * OUTLINE_ZOOM, y * OUTLINE_ZOOM];
      if (here !== inside(x - 1, y)) { path.moveTo(px, py); path.lineTo(px, py + OUTLINE_ZOOM); }
      if (here !== inside(x, y - 1)) { path.moveTo(px, py); path.lineTo(px + OUTLINE_ZOOM, py); }
    }
  }
  context.lineCap = "square";
  for (const [colour, size] of [["#000000", 5], ["#4fe3ff", 2.5]]) {
    Object.assign(context, { strokeStyle: colour, lineWidth: size });
    context.stroke(path);
  }
}

function panel(node, caption) {
  return el("figure", {}, node, el("figcaption", {}, caption));
}

function labelName(label) {
  return label === 1 ? "abnormal" : label === 0 ? "normal" : "unknown";
}

function makeCard(item) {
  const name = labelName(item.label);
  const card = { item, tag: el("span", { class: "outcome" }), overlayCanvas: el("canvas", { role: "img" }) };
  const numbers = el("p", { class: "numbers" },
    el("span", { class: `dot ${name}` }, name === "unknown" ? "no label" : name),
    el("span", {}, "score ", el("b", {}, format(item.score))));
  if (item.p_value !== null) numbers.append(el("span", {}, formatP(item.p_value)));
  numbers.append(card.tag);
  card.panels = el("div", { class: "panels" });
  card.panels.style.setProperty("--panels", anyMask ? 4 : 3);
  card.node = el("article", { class: "case" }, el("h3", {}, item.name), numbers);
  card.node.append(card.panels);
  if (item.note) card.node.append(el("p", { class: "note" }, item.note));
  card.ready = fillCard(card);
  return card;
}

async function fillCard(card) {
  const { item, panels, overlayCanvas } = card;
  const [image, heat, mask] = await Promise.all([item.image, item.heatmap, item.mask].map(loadImage));
  const none = (text) => el("div", { class: "none" }, text);
  Object.assign(card, { image, greys: heat && readGreys(heat) });
  const shape = image || heat;
  if (shape) panels.style.setProperty("--shape", `${shape.naturalWidth} / ${shape.naturalHeight}`);
  const heatCanvas = el("canvas", { role: "img", "aria-label": `Heat-map of ${item.name}` });
  overlayCanvas.setAttribute("aria-label", `Input with heat-map overlay of ${item.name}`);
  if (image) image.alt = `Input ${item.name}`;
  if (heat) paintHeat(heatCanvas, card.greys, 0);
  panels.append(
    panel(image || none("no image"), "Input"),
    panel(heat ? heatCanvas : none("no map"), "Heat-map"),
    panel(image && heat ? overlayCanvas : none("–"), "Overlay"),
  );
  if (anyMask) {
    const truth = el("canvas", { role: "img", "aria-label": `Ground-truth outline of ${item.name}` });
    if (image && mask) paintOutline(truth, image, readGreys(mask));
    panels.append(panel(image && mask ? truth : none(item.label === 0 ? "no lesion" : "no outline"), "Ground truth"));
  }
  paintOverlay(card);
}

function cardOf(item) {
  if (!cards.has(item)) {
    // Old cards are dropped whole; drawing one again is cheap, keeping thousands is not.
    if (cards.size >= CARDS_KEPT) cards.clear();
    cards.set(item, makeCard(item));
  }
  return cards.get(item);
}

const last = (value) => (value === null ? Infinity : value);
const byName = (a, b) => a.name.localeCompare(b.name, "en", { numeric: true });
const byScore = (a, b) => last(a.score === null ? null : -a.score) - last(b.score === null ? null : -b.score) || 0;
const ORDERS = {
  "score-desc": byScore,
  "score-asc": (a, b) => last(a.score) - last(b.score) || 0,
  "p-asc": (a, b) => last(a.p_value) - last(b.p_value) || 0,
  label: (a, b) => (b.label ?? -1) - (a.label ?? -1) || byScore(a, b),
  name: byName,
};

function showTag(card) {
  const kind = outcome(card.item);
  const words = { tp: "true positive", fp: "false positive", tn: "true negative", fn: "false negative",
    flagged: "flagged", clear: "not flagged" };
  card.tag.hidden = kind === null;
  card.tag.textContent = kind === null ? "" : words[kind];
  card.tag.classList.toggle("wrong", kind === "fp" || kind === "fn");
}

function wireOverlay(repaint) {
  const [slider, opacity, reset] = ["pixel", "opacity", "overlay-reset"].map(byId);
  const calibrated = report.pixel_threshold;
  // Stored maps have 256 levels, so the slider has too; a threshold beyond the scale rests at its end.
  const home = calibrated === null ? 0 : Math.min(255, Math.max(0, Math.ceil(calibrated / heatScale * 255)));
  const bar = byId("colour-bar");
  bar.style.background = `linear-gradient(to right, ${ANCHORS.map((hex) => `#${hex}`).join(", ")})`;
  bar.setAttribute("aria-label", `Colour scale from 0 to ${format(heatScale)}`);
  byId("scale-ticks").append(...["0", format(heatScale / 2), `≥ ${format(heatScale)}`].map((text) => el("span", {}, text)));
  byId("pixel-calibrated").hidden = calibrated === null;
  byId("pixel-calibrated").style.left = `${home / 2.55}%`;
  byId("pixel-state").textContent = calibrated === null
    ? "No pixel threshold was calibrated; the overlay starts with the whole map."
    : `Dotted line: calibrated pixel threshold ${format(calibrated)}${calibrated > heatScale ? ", above the colour scale" : ""}.`;
  const update = () => {
    Object.assign(overlay, { level: Number(slider.value), opacity: Number(opacity.value) / 100 });
    const value = format(overlay.level === home && calibrated !== null ? calibrated : overlay.level / 255 * heatScale);
    byId("pixel-value").textContent = value;
    slider.setAttribute("aria-valuetext", value);
    byId("opacity-value").textContent = `${opacity.value}\u202f%`;
    byId("pixel-mark").style.left = `${overlay.level / 2.55}%`;
    repaint();
  };
  reset.addEventListener("click", () => { slider.value = home; opacity.value = 60; update(); });
  slider.addEventListener("input", update);
  opacity.addEventListener("input", update);
  slider.value = home;
  update();
}

function makeFilters(onChange) {
  const kinds = ["all"];
  if (normals.length + abnormals.length > 0) kinds.push("fp", "fn", "tp", "tn");
  if (unknowns.length > 0) kinds.push("flagged", "clear");
  const buttons = kinds.map((kind) => {
    const button = el("button", { type: "button", "data-kind": kind });
    button.addEventListener("click", () => { view.filter = kind; view.page = 0; worstFirst(kind); onChange(); });
    return button;
  });
  byId("filters").append(...buttons);
  return (counts) => buttons.forEach((button) => {
    const { kind } = button.dataset;
    const count = kind === "all" ? report.cases.length : counts[kind];
    button.replaceChildren(kind === "all" ? "All" : OUTCOMES[kind], el("small", {}, String(count)));
    button.setAttribute("aria-pressed", String(view.filter === kind));
  });
}

function galleryText(shown) {
  if (report.cases.length === 0) return "This report has no cases.";
  if (shown === 0) return "No cases of this kind at the current threshold.";
  return `${shown} of ${report.cases.length} cases`;
}

/** Set the gallery up; `refresh` shows what the current threshold, filter, order and page ask for. */
function startGallery() {
  const box = byId("gallery");
  let sorted = [];
  let visible = [];
  const sortCases = () => { sorted = [...report.cases].sort((a, b) => ORDERS[view.sort](a, b) || byName(a, b)); };
  const refresh = (counts) => {
    showFilters(counts);
    const shown = view.filter === "all" ? sorted : sorted.filter((item) => outcome(item) === view.filter);
    const pages = Math.max(1, Math.ceil(shown.length / PAGE_SIZE));
    view.page = Math.min(view.page, pages - 1);
    const wanted = shown.slice(view.page * PAGE_SIZE, (view.page + 1) * PAGE_SIZE).map(cardOf);
    if (wanted.length !== visible.length || wanted.some((card, i) => card !== visible[i])) {
      box.replaceChildren(...wanted.map((card) => card.node));
      wanted.forEach(paintOverlay);
    }
    visible = wanted;
    visible.forEach(showTag);
    byId("gallery-state").textContent = galleryText(shown.length);
    byId("page-state").textContent = `Page ${view.page + 1} of ${pages}`;
    byId("previous").disabled = view.page === 0;
    byId("next").disabled = view.page + 1 >= pages;
    return Promise.all(visible.map((card) => card.ready));
  };
  const again = () => refresh(countOutcomes());
  const showFilters = makeFilters(again);
  const turn = (step) => { view.page += step; again(); byId("filters").scrollIntoView({ block: "start" }); };
  byId("previous").addEventListener("click", () => turn(-1));
  byId("next").addEventListener("click", () => turn(1));
  byId("sort").addEventListener("change", (event) => {
    Object.assign(view, { sort: event.target.value, page: 0 });
    sortCases();
    again();
  });
  sortCases();
  wireOverlay(oncePerFrame(() => visible.forEach(paintOverlay)));
  return { refresh };
}
