// Draws relevance against diversity for one query, as SVG.
const NAMESPACE = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [300, 200, 44, 14, 24, 36];

function make(tag, attributes, text = "") {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

// A scale from values to pixels, with some room at both ends.
function scale(values, from, to) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const room = (most - least || Math.abs(most) || 1) * 0.06;
  const [low, high] = [least - room, most + room];
  const place = (value) => from + ((value - low) / (high - low)) * (to - from);
  return { place, least, most };
}

const label = (value) => Number(value.toPrecision(2)).toString();

function axes(x, y, score) {
  const [bottom, right] = [HEIGHT - BOTTOM, WIDTH - RIGHT];
  const parts = [make("path", { class: "axis", fill: "none", d: `M${LEFT} ${TOP}V${bottom}H${right}` })];
  for (const value of new Set([x.least, x.most])) {
    parts.push(make("text", { class: "tick", x: x.place(value), y: bottom + 14, "text-anchor": "middle" }, label(value)));
  }
  for (const value of new Set([y.least, y.most])) {
    parts.push(make("text", { class: "tick", x: LEFT - 5, y: y.place(value) + 3, "text-anchor": "end" }, label(value)));
  }
  const middle = (LEFT + right) / 2;
  parts.push(make("text", { class: "tick", x: middle, y: HEIGHT - 4, "text-anchor": "middle" }, "mean distance between results →"));
  parts.push(make("text", { class: "tick", x: LEFT - 40, y: 12 }, `↑ mean ${score}, nearer is higher`));
  return parts;
}

export function drawCurve(place, caption, points, now, index) {
  const known = points.filter((point) => point.score !== null && point.distance !== null);
  const marks = now && now.score !== null && now.distance !== null ? [now] : [];
  place.replaceChildren();
  if (known.length < 2) {
    caption.textContent = "There are too few results for a curve.";
    return;
  }
  const all = [...known, ...marks];
  const x = scale(all.map((point) => point.distance), LEFT, WIDTH - RIGHT);
  const ends = [HEIGHT - BOTTOM, TOP];
  // Nearer is always higher.
  const y = scale(all.map((point) => point.score), ...(index.greater_is_nearer ? ends : ends.reverse()));
  const at = (point) => [x.place(point.distance), y.place(point.score)].map((n) => n.toFixed(1));
  const [first, last] = [known[0], known[known.length - 1]];
  const words = `Mean ${index.score} against mean distance between results: `
    + `${label(first.score)} and ${label(first.distance)} at diversity ${first.diversity}, `
    + `${label(last.score)} and ${label(last.distance)} at diversity ${last.diversity}.`;
  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words });
  svg.append(...axes(x, y, index.score));
  svg.append(make("polyline", { class: "line", points: known.map((point) => at(point).join()).join(" ") }));
  for (const point of [...known, ...marks]) {
    const [cx, cy] = at(point);
    const isNow = point === now;
    const dot = make("circle", { class: isNow ? "dot now" : "dot", cx, cy, r: isNow ? 6 : 3.5 });
    dot.append(make("title", {}, `diversity ${Number(point.diversity.toFixed(2))}`));
    svg.append(dot);
  }
  place.append(svg);
  caption.textContent = "Diversities from 0 to 1 for this query. The large dot is the diverse list shown here.";
}
