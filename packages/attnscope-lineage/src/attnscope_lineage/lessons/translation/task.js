// The task of the lesson: dates and numbers in English words, written in German words of another order.

/** The positions of the source words in the order of the translation, or null if the sentence is no list of dates and numbers. */
function orderOf(names, { days, months, small, tens: many }) {
  const order = [];
  let at = 0;
  const is = (list, offset = 0) => list.includes(names[at + offset]);
  const tens = () => is(many);
  /** A number below a hundred: its ones come before its tens. */
  function below() {
    if (tens() && is(small.slice(0, 9), 1)) { at += 2; return [at - 1, at - 2]; }
    if (tens() || is(small)) { at += 1; return [at - 1]; }
    return null;
  }
  function item() {
    if (is(days)) {
      const day = at;
      at += 1;
      if (!is(months)) return null;
      const month = at;
      at += 1;
      const numbers = [below(), below(), below()];
      return numbers.includes(null) ? null : [day, ...numbers[0], month, ...numbers[1], ...numbers[2]];
    }
    const units = [];
    for (const unit of ["thousand", "hundred"]) if (is(small.slice(0, 9)) && names[at + 1] === unit) { units.push(at, at + 1); at += 2; }
    if (units.length && names[at] === "and") at += 1;
    const rest = below();
    return rest && [...units, ...rest];
  }
  while (at < names.length) {
    const positions = item();
    if (!positions) return null;
    order.push(...positions);
    if (at === names.length) return order;
    if (names[at] !== ",") return null;
    order.push(at);
    at += 1;
  }
  return null;
}
