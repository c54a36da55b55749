const PROMPTS = [
  ["A history", "the history of the "],
  ["A river", "the river rises in the mountains and flows "],
  ["A century", "in the nineteenth century the city "],
  ["A definition", "a weir is a low dam which "],
];

const WEIR = `A weir is a low barrier across a river. It raises the level of the water behind it, and lets the river flow over its crest. \
People have built weirs for mills, for fishing and for boats since antiquity. The depth of the water over the crest shows how much \
water passes, so engineers also use weirs to measure the flow of streams. Fish cannot always pass a weir. Many weirs therefore have a \
ladder of small pools, in which fish climb from one level to the next.`;

const LOCKS = `A canal crosses a hill in steps. Each step is a lock: a chamber with a gate at both ends. A boat that goes up enters the \
empty chamber, and the keeper closes the lower gate behind it. Water from above then fills the chamber through small doors called \
paddles. When the levels are equal, the upper gate opens easily, because the water presses on both of its sides. The boat leaves, and \
the chamber is ready for a boat that goes down. Every passage takes a chamber of water from the upper level. A busy canal thus needs \
a reservoir at its summit, or pumps that bring the water back. Some locks have side ponds, which keep half of the water for the next \
boat. Where a hill is steep, locks follow one another without a stretch between them. Such a flight can have thirty chambers, and a \
boat needs most of a day for it. Lifts and inclined planes replaced some flights. A lift carries the boat in a tank of water, and a \
second tank balances it, so that a small engine moves both. Canals lost most of their goods to railways, which were faster and did not \
freeze in winter. Today the boats carry holiday makers, and volunteers look after many of the gates.`;

const DOCUMENTS = [
  ["Weirs, short", WEIR],
  ["Locks, longer", LOCKS],
  ["Too long for small models", `${WEIR}\n\n${LOCKS}\n\n${WEIR}\n\n${LOCKS}`],
];

/** Builds buttons that fill an input. */
function showExamples(root, input, examples) {
  at(root).append("Examples:", ...examples.map(([name, text]) => button(name, () => {
    const area = at(input);
    area.value = text;
    area.focus();
    // A long document shows its beginning.
    if (text.length > 200) area.setSelectionRange(0, 0);
    area.scrollTop = 0;
    area.dispatchEvent(new Event("input", { bubbles: true }));
  })));
}

