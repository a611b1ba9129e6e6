// Small charts as drawings: lines over steps, and a histogram with a threshold.

import { drawn, number } from "./dom.js";

const [WIDE, TALL, LEFT, BOTTOM, TOP, RIGHT] = [640, 240, 56, 30, 12, 12];
const MOST = 500; // points of a line; more cannot be told apart

function ticks(low, high, count = 5) {
  const raw = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step)
    found.push(Math.abs(value) < step * 1e-6 ? 0 : value);
  return found;
}

function frame(label, [x0, x1], [y0, y1], xName, log = false) {
  const x = (value) => LEFT + ((WIDE - LEFT - RIGHT) * (value - x0)) / (x1 - x0 || 1);
  const y = (value) => TALL - BOTTOM - ((TALL - BOTTOM - TOP) * (value - y0)) / (y1 - y0 || 1);
  const chart = drawn("svg", { class: "chart", viewBox: `0 0 ${WIDE} ${TALL}`, role: "img", "aria-label": label });
  for (const value of ticks(y0, y1, 4)) {
    const text = drawn("text", { x: LEFT - 8, y: y(value) + 4, class: "tick end" });
    text.textContent = number(log ? 10 ** value : value);
    chart.append(drawn("line", { x1: LEFT, x2: WIDE - RIGHT, y1: y(value), y2: y(value), class: "grid" }), text);
  }
  for (const value of ticks(x0, x1, 6)) {
    const text = drawn("text", { x: x(value), y: TALL - 12, class: "tick middle" });
    text.textContent = value.toLocaleString("en", { maximumSignificantDigits: 3 });
    chart.append(text);
  }
  const name = drawn("text", { x: LEFT - 8, y: TALL - 12, class: "tick end" });
  name.textContent = xName;
  chart.append(name);
  return { chart, x, y };
}

// Every n-th point, and the last one.
function thinned(points) {
  const every = Math.ceil(points.length / MOST);
  return points.filter((_, i) => i % every === 0 || i === points.length - 1);
}

// ``points``: [[x, y], …]
export function lineChart(points, { label, xName = "step", xMax = 0, log = false }) {
  const shown = thinned(
    points
      .filter(([, value]) => Number.isFinite(value) && (!log || value > 0))
      .map(([step, value]) => [step, log ? Math.log10(value) : value]),
  );
  const values = shown.map(([, value]) => value);
  const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
  const spare = (high - low) * 0.05 || 0.05;
  const last = Math.max(xMax, ...shown.map(([step]) => step), 1);
  const { chart, x, y } = frame(
    label,
    [0, last],
    [log || low < 0 ? low - spare : Math.max(0, low - spare), high + spare],
    xName,
    log,
  );
  const path = shown.map(([step, value], i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  chart.append(drawn("path", { d: path || "M0 0", class: "line" }));
  if (shown.length) chart.append(drawn("circle", { cx: x(shown.at(-1)[0]), cy: y(shown.at(-1)[1]), r: 3.5, class: "dot" }));
  return chart;
}

export function histogram(values, threshold, label) {
  const all = threshold === null ? values : [...values, threshold];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const bins = Math.max(6, Math.min(30, Math.round(Math.sqrt(values.length) * 2)));
  const width = (high - low) / bins || 1;
  const counts = new Array(bins).fill(0);
  for (const value of values) counts[Math.min(bins - 1, Math.floor((value - low) / width))]++;
  const { chart, x, y } = frame(label, [low, low + width * bins], [0, 1.15 * Math.max(...counts)], "score");
  counts.forEach((count, i) =>
    chart.append(
      drawn("rect", {
        x: x(low + i * width) + 0.5,
        width: Math.max(0.5, x(low + (i + 1) * width) - x(low + i * width) - 1),
        y: y(count),
        height: TALL - BOTTOM - y(count),
        class: "bar",
      }),
    ),
  );
  if (threshold !== null) {
    const text = drawn("text", {
      x: x(threshold) + (x(threshold) > WIDE / 2 ? -6 : 6),
      y: TOP + 10,
      class: `tick mark-text${x(threshold) > WIDE / 2 ? " end" : ""}`,
    });
    text.textContent = `threshold ${number(threshold)}`;
    chart.append(drawn("line", { x1: x(threshold), x2: x(threshold), y1: TOP, y2: TALL - BOTTOM, class: "mark" }), text);
  }
  return chart;
}
