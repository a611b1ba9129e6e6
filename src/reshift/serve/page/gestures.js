// Mouse, pen, fingers, wheel and keys on a viewport.

const CLICK = 4; // pixels: a shorter way is a click, not a drag
const NOTCH = 60; // of a wheel, in pixels

export function listen(viewport) {
  const { screen } = viewport;
  const pointers = new Map();
  let start = null;
  let rolled = 0;

  screen.addEventListener("pointerdown", (event) => {
    if (event.button > 2) return;
    screen.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    start = { x: event.clientX, y: event.clientY, far: false, kind: kindOf(event, viewport) };
  });
  screen.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) {
      viewport.actions.hover(viewport, viewport.pixelAt(event.clientX, event.clientY));
      return;
    }
    const now = [event.clientX, event.clientY];
    if (pointers.size === 2) pinch(viewport, pointers, event.pointerId, now);
    else if (start) drag(viewport, start, before, now);
    pointers.set(event.pointerId, now);
  });
  const end = (event) => {
    const alone = pointers.size === 1;
    pointers.delete(event.pointerId);
    if (event.type === "pointerup" && alone && start && !start.far && event.button === 0) {
      const place = viewport.pixelAt(event.clientX, event.clientY);
      if (place) viewport.actions.place(viewport, place);
    }
    start = null;
  };
  screen.addEventListener("pointerup", end);
  screen.addEventListener("pointercancel", end);
  screen.addEventListener("pointerleave", () => viewport.actions.hover(viewport, null));
  screen.addEventListener("dblclick", () => viewport.actions.reset(viewport));
  screen.addEventListener("contextmenu", (event) => event.preventDefault());
  screen.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      if (event.ctrlKey || !viewport.volume) {
        viewport.zoomBy(Math.exp(-event.deltaY / 400), event.clientX, event.clientY);
        return;
      }
      rolled += event.deltaMode === 0 ? event.deltaY : event.deltaY * NOTCH;
      const steps = Math.trunc(rolled / NOTCH);
      rolled -= steps * NOTCH;
      if (steps) viewport.actions.step(viewport, steps);
    },
    { passive: false },
  );
  screen.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey && key(viewport, event.key)) event.preventDefault();
  });
}

// What a drag does: the left button as the chosen tool says, the middle one or Shift pans, the right one zooms.
function kindOf(event, viewport) {
  if (event.button === 1 || event.shiftKey) return "pan";
  return event.button === 2 ? "zoom" : viewport.actions.tool();
}

function drag(viewport, start, before, now) {
  const far = Math.hypot(now[0] - start.x, now[1] - start.y) > CLICK;
  start.far ||= far;
  if (!start.far) return;
  const [dx, dy] = [now[0] - before[0], now[1] - before[1]];
  if (start.kind === "pan") viewport.panBy(dx, dy);
  else if (start.kind === "zoom") viewport.zoomBy(Math.exp(-dy / 150), start.x, start.y);
  else viewport.actions.window(dx, dy);
}

function pinch(viewport, pointers, moved, now) {
  const other = [...pointers].find(([id]) => id !== moved)[1];
  const before = pointers.get(moved);
  const spread = (point) => Math.max(1, Math.hypot(point[0] - other[0], point[1] - other[1]));
  viewport.panBy((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
  viewport.zoomBy(spread(now) / spread(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
}

function key(viewport, name) {
  const steps = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1, PageUp: 10, PageDown: -10, Home: -1e6, End: 1e6 };
  const moves = { ArrowUp: [0, 40], ArrowDown: [0, -40], ArrowLeft: [40, 0], ArrowRight: [-40, 0] };
  if (name === "+" || name === "=") viewport.zoomBy(1.25);
  else if (name === "-") viewport.zoomBy(0.8);
  else if (viewport.volume && name in steps) viewport.actions.step(viewport, steps[name]);
  else if (!viewport.volume && name in moves) viewport.panBy(...moves[name]);
  else return false;
  return true;
}
