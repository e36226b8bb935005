// Where the boxes and arrows of the cluster's picture go. Pure: takes what boxesOf() returns, a
// token's path and a width in pixels, returns rectangles and SVG paths.
//
// Boxes are in rows, which are read alternately from the left and from the right, in the order in
// which a token passes them: so most arrows lead to the neighbour. Others run between the rows.

const MAP = {
  gapX: 92,
  gapY: 60,
  minWidth: 190,
  maxWidth: 320,
  margin: 26,
  lane: 7,
};

/** `{ordered, numOnPath}`: machines in the order of the path, then those without a part in it. */
export function inPathOrder(machines, path) {
  const order = [];
  const add = (nodeId) => {
    const machine = machines.find((each) => each.nodeIds.includes(nodeId));
    if (machine && !order.includes(machine)) order.push(machine);
  };
  if (path) {
    const nodeIds = path.steps.flatMap((step) => step.members.map((member) => member.nodeId));
    if (!nodeIds.includes(path.coordinator)) add(path.coordinator);
    nodeIds.forEach(add);
  }
  const others = machines.filter((machine) => !order.includes(machine));
  return { ordered: [...order, ...others], numOnPath: order.length };
}

/** How many boxes fit side by side. */
function numColumns(numBoxes, width) {
  const inner = width - 2 * MAP.margin;
  const most = Math.floor((inner + MAP.gapX) / (MAP.minWidth + MAP.gapX));
  return Math.max(1, Math.min(numBoxes, most));
}

/**
 * Boxes of `heightOf(machine)`, every row as high as its highest one. The first `numOnPath` of the
 * machines are those that a token passes.
 */
export function layoutBoxes(machines, numOnPath, width, heightOf) {
  const columns = numColumns(machines.length, width);
  const inner = width - 2 * MAP.margin - (columns - 1) * MAP.gapX;
  const boxWidth = Math.max(120, Math.min(MAP.maxWidth, Math.floor(inner / columns)));
  const boxes = [];
  let top = 4;
  for (let start = 0; start < machines.length; start += columns) {
    const row = machines.slice(start, start + columns);
    const height = Math.max(...row.map(heightOf));
    const rowIndex = start / columns;
    row.forEach((machine, index) => {
      const isReversed = rowIndex % 2 === 1 && start < numOnPath;
      const column = isReversed ? columns - 1 - index : index;
      const left = MAP.margin + column * (boxWidth + MAP.gapX);
      boxes.push({ machine, row: rowIndex, column, left, top, width: boxWidth, height });
    });
    top += height + MAP.gapY;
  }
  return { boxes, width, height: top - MAP.gapY + MAP.gapY / 2 + 4 };
}

/** The hops of a path in order, and what connects units that share a stage (`isGroup`). */
export function hopsOf(path) {
  if (!path) return [];
  const hops = path.entry ? [path.entry] : [];
  for (const step of path.steps) {
    step.members.slice(1).forEach((member, index) => {
      hops.push({ from: step.members[index].nodeId, to: member.nodeId, isGroup: true });
    });
    hops.push(step.hop);
  }
  return hops;
}

/**
 * Arrows of the hops between boxes: a line and a head each, and where its label goes. The label has
 * two lines `lineBelow` pixels apart, or a single one if that is 0.
 */
export function layoutArrows(boxes, hops) {
  const boxOf = (nodeId) => boxes.find((box) => box.machine.nodeIds.includes(nodeId));
  const pairs = new Set();
  const drawn = [];
  for (const hop of hops) {
    const from = boxOf(hop.from);
    const to = boxOf(hop.to);
    const pair = from && to && from !== to ? pairOf(from, to) : null;
    if (pair === null || pairs.has(pair)) continue;
    pairs.add(pair);
    drawn.push({ hop, from, to });
  }
  let lane = 0;
  return drawn.map(({ hop, from, to }) => {
    const isBothWays = pairs.has(pairOf(to, from));
    const isInRow = from.row === to.row && Math.abs(from.column - to.column) === 1;
    if (isInRow) return { hop, ...sideways(from, to, isBothWays) };
    const isInColumn = from.column === to.column && to.row === from.row + 1;
    if (isInColumn && !hop.isReturn) return { hop, ...downwards(from, to) };
    const arrow = { hop, ...around(from, to, lane) };
    lane += 1;
    return arrow;
  });
}

function pairOf(from, to) {
  return `${from.machine.key}>${to.machine.key}`;
}

/** A triangle with its tip at (x, y) that points in the direction (dx, dy), of length 1. */
function arrowHead(x, y, dx, dy) {
  const [backX, backY] = [x - dx * 11, y - dy * 11];
  const [sideX, sideY] = [dy * 5, dx * 5];
  return `M ${x} ${y} L ${backX + sideX} ${backY + sideY} L ${backX - sideX} ${backY - sideY} Z`;
}

function sideways(from, to, isBothWays) {
  const isRight = to.left > from.left;
  const shift = isBothWays ? (isRight ? -26 : 26) : 0;
  const y = Math.round(from.top + from.height / 2 + shift);
  const start = isRight ? from.left + from.width : from.left;
  const end = isRight ? to.left : to.left + to.width;
  return {
    path: `M ${start} ${y} H ${end}`,
    head: arrowHead(end, y, isRight ? 1 : -1, 0),
    label: { x: (start + end) / 2, y: y - 8, anchor: "middle", lineBelow: 22 },
  };
}

function downwards(from, to) {
  const x = from.left + from.width / 2;
  const end = to.top;
  const start = from.top + from.height;
  return {
    path: `M ${x} ${start} V ${end}`,
    head: arrowHead(x, end, 0, 1),
    label: { x: x + 10, y: (start + end) / 2 - 3, anchor: "start", lineBelow: 14 },
  };
}

/** Between the rows, and along the left edge to rows that are further away. */
function around(from, to, lane) {
  const shift = lane * MAP.lane;
  const startX = Math.round(from.left + from.width / 2) - 14 - shift;
  const startY = from.top + from.height;
  const below = startY + MAP.gapY / 2 - 10 + shift;
  const edge = Math.max(3, MAP.margin - 16 - shift);
  const label =
    from.column === 0
      ? { x: edge + 6, y: below - 5, anchor: "start", lineBelow: 0 }
      : { x: startX - 8, y: below - 5, anchor: "end", lineBelow: 0 };
  const x = Math.round(to.left + to.width / 2 + Math.min(70, to.width / 2 - 40)) + shift;
  if (to.row === from.row + 1) {
    return {
      path: `M ${startX} ${startY} V ${below} H ${x} V ${to.top}`,
      head: arrowHead(x, to.top, 0, 1),
      label,
    };
  }
  if (to.column === 0) {
    const y = Math.round(to.top + to.height / 2) + shift + 8;
    return {
      path: `M ${startX} ${startY} V ${below} H ${edge} V ${y} H ${to.left}`,
      head: arrowHead(to.left, y, 1, 0),
      label,
    };
  }
  if (to.row === from.row) {
    const bottom = to.top + to.height;
    return {
      path: `M ${startX} ${startY} V ${below} H ${x} V ${bottom}`,
      head: arrowHead(x, bottom, 0, -1),
      label,
    };
  }
  const above = Math.max(2, to.top - MAP.gapY / 2 + 10 - shift);
  return {
    path: `M ${startX} ${startY} V ${below} H ${edge} V ${above} H ${x} V ${to.top}`,
    head: arrowHead(x, to.top, 0, 1),
    label,
  };
}
