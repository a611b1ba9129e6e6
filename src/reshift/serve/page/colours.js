// Colour tables over the 65,536 levels of a plane. Lightness rises along both ramps, so they also read in grey and for
// colour-blind eyes; the first one is that of the overlays which the command line writes.

export const RAMPS = {
  ember: [
    [0, 0, 4],
    [40, 11, 84],
    [101, 21, 110],
    [159, 42, 99],
    [212, 72, 66],
    [245, 125, 21],
    [250, 193, 39],
    [252, 255, 164],
  ],
  "blue to yellow": [
    [0, 30, 80],
    [52, 68, 108],
    [100, 104, 116],
    [146, 140, 116],
    [196, 180, 96],
    [255, 232, 60],
  ],
};
export const OUTLINE = "#00d7ff"; // in neither ramp, nor in a grey image
const DARKEST = 0.4; // where on the ramp the threshold lies: the dark end would look like the image
const NO_VALUE = 65535;

export function colour(ramp, place) {
  const position = Math.min(1, Math.max(0, place)) * (ramp.length - 1);
  const low = Math.min(ramp.length - 2, Math.floor(position));
  return ramp[low].map((from, c) => Math.round(from + (position - low) * (ramp[low + 1][c] - from)));
}

// Level → grey 0 … 255 within a window.
export function greyTable({ scale, offset }, [low, high]) {
  const table = new Uint8ClampedArray(65536);
  const step = 255 / Math.max(high - low, 1e-12);
  for (let level = 0; level < NO_VALUE; level++) table[level] = (level * scale + offset - low) * step;
  return table;
}

// Level → RGBA in one 32-bit number (little-endian): clear up to the threshold, full colour from ``full`` on.
export function heatTable({ scale, offset }, { threshold, full, opacity, ramp }) {
  const table = new Uint32Array(65536);
  const steps = Array.from({ length: 257 }, (_, i) => {
    const [r, g, b] = colour(RAMPS[ramp], DARKEST + ((1 - DARKEST) * i) / 256);
    const alpha = Math.round(255 * opacity * (0.6 + (0.4 * i) / 256));
    return ((alpha << 24) | (b << 16) | (g << 8) | r) >>> 0;
  });
  const range = Math.max(full - threshold, 1e-12);
  for (let level = firstAbove({ scale, offset }, threshold); level < NO_VALUE; level++) {
    table[level] = steps[Math.min(256, Math.max(0, Math.round((256 * (level * scale + offset - threshold)) / range)))];
  }
  return table;
}

// The lowest level whose value is above the threshold.
export const firstAbove = ({ scale, offset }, threshold) => Math.max(0, Math.floor((threshold - offset) / scale) + 1);

export function imagePixels(plane, window) {
  const [rows, columns, channels] = plane.shape;
  const table = greyTable(plane, window);
  const out = new ImageData(columns, rows);
  const { data } = plane;
  for (let i = 0, o = 0; o < out.data.length; i += channels, o += 4) {
    out.data[o] = table[data[i]];
    out.data[o + 1] = channels === 3 ? table[data[i + 1]] : out.data[o];
    out.data[o + 2] = channels === 3 ? table[data[i + 2]] : out.data[o];
    out.data[o + 3] = data[i] === NO_VALUE ? 0 : 255;
  }
  return out;
}

export function heatPixels(plane, look) {
  const [rows, columns] = plane.shape;
  const table = heatTable(plane, look);
  const out = new ImageData(columns, rows);
  const words = new Uint32Array(out.data.buffer);
  for (let i = 0; i < words.length; i++) words[i] = table[plane.data[i]];
  return out;
}

// The edges between marked and unmarked pixels as a path in pixel coordinates; also how many pixels are marked.
export function outline(plane, threshold) {
  const [rows, columns] = plane.shape;
  const from = firstAbove(plane, threshold);
  const marked = (row, column) => {
    if (row < 0 || column < 0 || row >= rows || column >= columns) return false;
    const level = plane.data[row * columns + column];
    return level >= from && level !== NO_VALUE;
  };
  const path = new Path2D();
  const runs = (lines, length, differs, line) => {
    for (let i = 0; i <= lines; i++) {
      let begin = -1;
      for (let j = 0; j <= length; j++) {
        const edge = j < length && differs(i, j);
        if (edge && begin < 0) begin = j;
        if (!edge && begin >= 0) {
          line(i, begin, j);
          begin = -1;
        }
      }
    }
  };
  const draw = (x0, y0, x1, y1) => {
    path.moveTo(x0, y0);
    path.lineTo(x1, y1);
  };
  runs(
    rows,
    columns,
    (i, j) => marked(i - 1, j) !== marked(i, j),
    (i, a, b) => draw(a, i, b, i),
  );
  runs(
    columns,
    rows,
    (i, j) => marked(j, i - 1) !== marked(j, i),
    (i, a, b) => draw(i, a, i, b),
  );
  return path;
}

export function countMarked(plane, threshold) {
  const from = firstAbove(plane, threshold);
  let marked = 0;
  for (const level of plane.data) marked += level >= from && level !== NO_VALUE;
  return marked;
}
