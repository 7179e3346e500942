/**
 * Host lists in brackets (RFC 29): `node[0-2,7],login` is node0, node1, node2, node7, login.
 * @module
 */

const MOST = 100_000;

/** @param {string} text @returns {string[]} @throws {RangeError} more than 100 000 hosts */
export function expand(text) {
  const hosts = [];
  for (const word of text.match(/(?:[^,[\]]|\[[^\]]*\])+/g) ?? []) {
    for (const host of expandWord(word)) {
      hosts.push(host);
      if (hosts.length > MOST) throw new RangeError(`a host list of more than ${MOST} hosts`);
    }
  }
  return hosts;
}

function* expandWord(word) {
  const match = /^([^[]*)\[([^\]]*)\](.*)$/.exec(word);
  if (!match) {
    yield word;
    return;
  }
  const [, before, ranges, after] = match;
  for (const range of ranges.split(',')) {
    const [from, to = from] = range.split('-');
    for (let number = Number(from); number <= Number(to); number += 1) {
      for (const tail of expandWord(after)) yield before + String(number).padStart(from.length, '0') + tail;
    }
  }
}
