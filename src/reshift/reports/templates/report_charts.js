// Curves as inline SVG. Each chart is drawn once; only its markers move with the threshold.

const FRAME = { width: 400, height: 300, left: 46, right: 12, top: 26, bottom: 42 };
const BINS = 32;

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function niceTicks(low, high, wanted) {
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step); i * step <= high; i += 1) ticks.push(i * step);
  // Digits follow the step, so 0.30000000000000004 reads 0.3.
  const digits = Math.min(20, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  const large = Math.max(Math.abs(low), Math.abs(high)) >= 1e5 || step < 1e-5;
  return ticks.map((value) => [value, large ? value.toExponential(1) : value.toFixed(digits)]);
}

/** An empty chart with axes; x and y turn data into drawing units. */
function makeFrame(label, xTitle, yTitle, xRange, yRange) {
  const { width, height, left, right, top, bottom } = FRAME;
  const x = (value) => left + (value - xRange[0]) / (xRange[1] - xRange[0]) * (width - left - right);
  const y = (value) => height - bottom - (value - yRange[0]) / (yRange[1] - yRange[0]) * (height - top - bottom);
  const node = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const base = height - bottom;
  for (const [value, text] of niceTicks(...yRange, 4)) {
    node.append(
      svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, text),
    );
  }
  for (const [value, text] of niceTicks(...xRange, 5)) {
    node.append(svg("text", { x: x(value), y: base + 16, "text-anchor": "middle" }, text));
  }
  node.append(
    svg("line", { class: "axis", x1: left, x2: width - right, y1: base, y2: base }),
    svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, xTitle),
    svg("text", { x: 0, y: 12 }, yTitle),
  );
  return { node, x, y, base };
}

function binShares(items, [low, high]) {
  const shares = new Array(BINS).fill(0);
  for (const { score } of items) {
    const bin = Math.min(BINS - 1, Math.max(0, Math.floor((score - low) / (high - low) * BINS)));
    shares[bin] += 100 / items.length;
  }
  return shares;
}

function drawHistogram(range) {
  const groups = [["normal", normals], ["abnormal", abnormals], ["unknown", unknowns]]
    .filter(([, items]) => items.length > 0)
    .map(([name, items]) => ({ name, count: items.length, shares: binShares(items, range) }));
  if (groups.length === 0) return { node: el("p", { class: "empty" }, "No scores to show."), move: () => {} };
  const peak = Math.max(...groups.flatMap((group) => group.shares));
  const legend = groups.map((group) => `${group.count} ${group.name}`).join(", ");
  const frame = makeFrame(`Histogram of image scores: ${legend}`, "Image score", "% of group", range, [0, peak * 1.08]);
  const edge = (i) => frame.x(range[0] + i * (range[1] - range[0]) / BINS).toFixed(1);
  groups.forEach(({ name, count, shares }, index) => {
    // Empty bins are left out, or a coloured line would run along the axis.
    const steps = shares.map((share, i) => {
      const begin = shares[i - 1] > 0 ? "" : `M${edge(i)} ${frame.base}`;
      const end = shares[i + 1] > 0 ? "" : `V${frame.base}`;
      return share > 0 ? `${begin}V${frame.y(share).toFixed(1)}H${edge(i + 1)}${end}` : "";
    }).join("");
    const legendX = FRAME.width - FRAME.right - 112 * (groups.length - index) + 10;
    frame.node.append(
      svg("path", { class: `bars ${name}`, d: steps }),
      svg("rect", { class: `bars ${name}`, x: legendX, y: 4, width: 10, height: 10 }),
      svg("text", { x: legendX + 16, y: 13 }, `${name} (${count})`),
    );
  });
  if (report.image_threshold !== null) {
    const at = frame.x(report.image_threshold);
    frame.node.append(svg("line", { class: "was", x1: at, x2: at, y1: FRAME.top, y2: frame.base }));
  }
  const line = svg("line", { class: "now", y1: FRAME.top, y2: frame.base });
  const tag = svg("text", { class: "strong", y: FRAME.top + 9 }, "threshold");
  frame.node.append(line, tag);
  const move = () => {
    for (const mark of [line, tag]) mark.toggleAttribute("hidden", state.threshold === null);
    if (state.threshold === null) return;
    // A typed threshold may lie outside the scores; the line then rests on the edge.
    const at = frame.x(Math.min(range[1], Math.max(range[0], state.threshold)));
    line.setAttribute("x1", at);
    line.setAttribute("x2", at);
    const rightHalf = at > FRAME.width / 2;
    tag.setAttribute("x", at + (rightHalf ? -6 : 6));
    tag.setAttribute("text-anchor", rightHalf ? "end" : "start");
  };
  return { node: frame.node, move };
}

/** True and false positives for every possible threshold, tied scores taken together. */
function sweep() {
  const sorted = [...normals, ...abnormals].sort((a, b) => b.score - a.score);
  const steps = [];
  let tp = 0;
  let fp = 0;
  sorted.forEach((item, i) => {
    if (item.label === 1) tp += 1;
    else fp += 1;
    if (i + 1 === sorted.length || sorted[i + 1].score !== item.score) steps.push({ tp, fp });
  });
  return steps;
}

/** The operating point, and a ring that stays where the calibrated threshold put it. */
function addPoint(frame) {
  const home = svg("circle", { class: "was", r: 6.5, hidden: "" });
  const mark = svg("circle", { class: "point", r: 6.5, hidden: "" });
  frame.node.append(home, mark);
  return (x, y) => {
    const known = Number.isFinite(x) && Number.isFinite(y);
    mark.toggleAttribute("hidden", !known);
    const moved = known && state.threshold === report.image_threshold ? [mark, home] : [mark];
    for (const circle of known ? moved : []) {
      circle.removeAttribute("hidden");
      circle.setAttribute("cx", frame.x(x));
      circle.setAttribute("cy", frame.y(y));
    }
  };
}

function addNumber(frame, name, value, atTop) {
  if (typeof value !== "number") return;
  const y = atTop ? FRAME.top + 18 : frame.base - 14;
  const x = FRAME.width - FRAME.right - 8;
  frame.node.append(svg("text", { class: "strong", x, y, "text-anchor": "end" }, `${name} ${value.toFixed(3)}`));
}

function drawRoc(steps) {
  const frame = makeFrame(
    "ROC curve: sensitivity against false-positive rate", "False-positive rate (1 − specificity)", "Sensitivity", [0, 1], [0, 1],
  );
  const points = steps.map(({ tp, fp }) => `L${frame.x(fp / normals.length)} ${frame.y(tp / abnormals.length)}`);
  frame.node.append(
    svg("line", { class: "chance", x1: frame.x(0), y1: frame.y(0), x2: frame.x(1), y2: frame.y(1) }),
    svg("path", { class: "curve", d: `M${frame.x(0)} ${frame.y(0)}${points.join("")}` }),
  );
  addNumber(frame, "AUC", report.metrics.image?.auc, false);
  const place = addPoint(frame);
  return { node: frame.node, move: ({ tp, fp, tn, fn }) => place(fp / (fp + tn), tp / (tp + fn)) };
}

function drawPr(steps) {
  const frame = makeFrame(
    "Precision–recall curve", "Recall (sensitivity)", "Precision (PPV)", [0, 1], [0, 1],
  );
  const precision = ({ tp, fp }) => frame.y(tp / (tp + fp));
  const points = steps.map((step) => `V${precision(step)}H${frame.x(step.tp / abnormals.length)}`);
  const prevalence = frame.y(abnormals.length / (normals.length + abnormals.length));
  frame.node.append(
    svg("line", { class: "chance", x1: frame.x(0), y1: prevalence, x2: frame.x(1), y2: prevalence }),
    svg("path", { class: "curve", d: `M${frame.x(0)} ${precision(steps[0])}${points.join("")}` }),
  );
  addNumber(frame, "Average precision", report.metrics.image?.ap, false);
  const place = addPoint(frame);
  return { node: frame.node, move: ({ tp, fp, fn }) => place(tp / (tp + fn), tp / (tp + fp)) };
}

/** Draw all charts; the returned function moves their markers to the current threshold. */
function drawCharts(range) {
  const charts = { histogram: drawHistogram(range) };
  if (normals.length > 0 && abnormals.length > 0) {
    const steps = sweep();
    charts.roc = drawRoc(steps);
    charts.pr = drawPr(steps);
  }
  for (const id of ["histogram", "roc", "pr"]) {
    const missing = () => el("p", { class: "empty" }, "Needs labelled images of both kinds, normal and abnormal.");
    byId(id).append(charts[id] ? charts[id].node : missing());
  }
  return (counts) => Object.values(charts).forEach((chart) => chart.move(counts));
}
