/**
 * Where the nodes of a tree stand: side by side with the root at the left, or an outline where there is little room.
 * @module
 */

/**
 * @typedef {object} Place
 * @property {object} node
 * @property {number} x
 * @property {number} y
 * @property {number} width
 * @property {number} level   1 is the root
 * @property {Place | null} parent
 * @property {boolean} folded  its children are not shown
 */

const LEVEL_GAP = 36;
const ROW_GAP = 16;
const INDENT = 18;
const OUTLINE_GAP = 6;
const LINE_GAP = 2;
/** A picture with more leaves than this would not be seen at a glance any more. */
const GRAPH_LEAVES = 5;
/** From so many nodes on an outline has one line a node, where it is wide enough. */
const LINES_FROM = 10;
const LINE_WIDTH_MIN = 440;
const NODE_MIN = 168;
const NODE_MAX = 290;

/**
 * @param {object} root       a node with `children`
 * @param {object} options
 * @param {number} options.width    pixels there are
 * @param {{graph: number, outline: number, lines: number}} options.heights  of a node, by form
 * @param {(node: object) => boolean} options.folded
 * @returns {{places: Place[], width: number, height: number, form: string, rowHeight: number}}  form: as of `heights`
 */
export function plan(root, { width, heights, folded }) {
  const depth = depthOf(root, folded);
  const nodeWidth = Math.min(NODE_MAX, (width - (depth - 1) * LEVEL_GAP) / depth);
  const leaves = leavesOf(root, folded);
  if (nodeWidth >= NODE_MIN && leaves <= GRAPH_LEAVES) {
    return graph(root, { width, nodeWidth, rowHeight: heights.graph, folded });
  }
  const form = width >= LINE_WIDTH_MIN && sizeOf(root, folded) >= LINES_FROM ? 'lines' : 'outline';
  return outline(root, { width, form, rowHeight: heights[form], folded });
}

const shown = (node, folded) => (folded(node) ? [] : node.children);
const depthOf = (node, folded) => 1 + Math.max(0, ...shown(node, folded).map((child) => depthOf(child, folded)));
const sizeOf = (node, folded) => shown(node, folded).reduce((sum, child) => sum + sizeOf(child, folded), 1);
const leavesOf = (node, folded) => shown(node, folded).reduce((sum, child) => sum + leavesOf(child, folded), 0) || 1;

/** Leaves get a row each; a parent stands in the middle of its children. */
function graph(root, { width, nodeWidth, rowHeight, folded }) {
  const places = [];
  let row = 0;
  const put = (node, level, parent) => {
    const place = { node, level, parent, width: nodeWidth, x: (level - 1) * (nodeWidth + LEVEL_GAP), y: 0 };
    place.folded = node.children.length > 0 && folded(node);
    places.push(place);
    const below = shown(node, folded).map((child) => put(child, level + 1, place));
    place.y = below.length ? (below[0].y + below.at(-1).y) / 2 : row++ * (rowHeight + ROW_GAP);
    return place;
  };
  put(root, 1, null);
  return { places, width, height: row * (rowHeight + ROW_GAP) - ROW_GAP, form: 'graph', rowHeight };
}

/** A row for each node, as a file manager does it. */
function outline(root, { width, form, rowHeight, folded }) {
  const places = [];
  const step = rowHeight + (form === 'lines' ? LINE_GAP : OUTLINE_GAP);
  const put = (node, level, parent) => {
    const x = Math.min((level - 1) * INDENT, width / 3);
    const place = { node, level, parent, x, y: places.length * step, width: width - x };
    place.folded = node.children.length > 0 && folded(node);
    places.push(place);
    for (const child of shown(node, folded)) put(child, level + 1, place);
  };
  put(root, 1, null);
  return { places, width, height: places.length * step - (step - rowHeight), form, rowHeight };
}
