const PROMPTS = [
  ["A president", "The President of the United States "],
  ["A history", "The history of the city "],
  ["A river", "The river rises in the mountains and flows "],
  ["A definition", "A weir is a low dam which "],
];

/** Texts of the editor. The first is shown when the page opens. */
const WRITINGS = [
  ["Typing errors", `In the nineteenth century the citizens fought for there rights, and many of them left thier homes. The war began in the \
spring, and the army was led by a general of the North. The goverment did not recieve the news until the end of the month, when a \
letter was sent to the Presidnet of the `],
  ["A letter", `Dear Sir, I have recieved your letter of the first of this month, and I thank you very much for the kind `],
  ["An encyclopedia", `The river rises in the mountains and flows to the south through the city. It is the longest river of the county, and the `],
  ["Nothing yet", ""],
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

/** The beginning of Alice's Adventures in Wonderland (Lewis Carroll, 1865), which is in no model's training text. */
const ALICE = `Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or twice she had peeped \
into the book her sister was reading, but it had no pictures or conversations in it, 'and what is the use of a book,' thought Alice \
'without pictures or conversation?'
So she was considering in her own mind (as well as she could, for the hot day made her feel very sleepy and stupid), whether the \
pleasure of making a daisy-chain would be worth the trouble of getting up and picking the daisies, when suddenly a White Rabbit with \
pink eyes ran close by her.
There was nothing so VERY remarkable in that; nor did Alice think it so VERY much out of the way to hear the Rabbit say to itself, 'Oh \
dear! Oh dear! I shall be late!' (when she thought it over afterwards, it occurred to her that she ought to have wondered at this, but \
at the time it all seemed quite natural); but when the Rabbit actually TOOK A WATCH OUT OF ITS WAISTCOAT-POCKET, and looked at it, and \
then hurried on, Alice started to her feet, for it flashed across her mind that she had never before seen a rabbit with either a \
waistcoat-pocket, or a watch to take out of it, and burning with curiosity, she ran across the field after it, and fortunately was \
just in time to see it pop down a large rabbit-hole under the hedge.
In another moment down went Alice after it, never once considering how in the world she was to get out again.
The rabbit-hole went straight on like a tunnel for some way, and then dipped suddenly down, so suddenly that Alice had not a moment to \
think about stopping herself before she found herself falling down a very deep well.
Either the well was very deep, or she fell very slowly, for she had plenty of time as she went down to look about her and to wonder \
what was going to happen next. First, she tried to look down and make out what she was coming to, but it was too dark to see anything; \
then she looked at the sides of the well, and noticed that they were filled with cupboards and book-shelves; here and there she saw \
maps and pictures hung upon pegs. She took down a jar from one of the shelves as she passed; it was labelled 'ORANGE MARMALADE', but \
to her great disappointment it was empty: she did not like to drop the jar for fear of killing somebody, so managed to put it into one \
of the cupboards as she fell past it.
'Well!' thought Alice to herself, 'after such a fall as this, I shall think nothing of tumbling down stairs! How brave they'll all \
think me at home! Why, I wouldn't say anything about it, even if I fell off the top of the house!' (Which was very likely true.)
Down, down, down. Would the fall NEVER come to an end! 'I wonder how many miles I've fallen by this time?' she said aloud. 'I must be \
getting somewhere near the centre of the earth. Let me see: that would be four thousand miles down, I think--' (for, you see, Alice \
had learnt several things of this sort in her lessons in the schoolroom, and though this was not a VERY good opportunity for showing \
off her knowledge, as there was no one to listen to her, still it was good practice to say it over) '--yes, that's about the right \
distance--but then I wonder what Latitude or Longitude I've got to?' (Alice had no idea what Latitude was, or Longitude either, but \
thought they were nice grand words to say.)
Presently she began again. 'I wonder if I shall fall right THROUGH the earth! How funny it'll seem to come out among the people that \
walk with their heads downward! The Antipathies, I think--' (she was rather glad there WAS no one listening, this time, as it didn't \
sound at all the right word) '--but I shall have to ask them what the name of the country is, you know. Please, Ma'am, is this New \
Zealand or Australia?' (and she tried to curtsey as she spoke--fancy CURTSEYING as you're falling through the air! Do you think you \
could manage it?) 'And what an ignorant little girl she'll think me for asking! No, it'll never do to ask: perhaps I shall see it \
written up somewhere.'
Down, down, down. There was nothing else to do, so Alice soon began talking again. 'Dinah'll miss me very much to-night, I should \
think!' (Dinah was the cat.) 'I hope they'll remember her saucer of milk at tea-time. Dinah my dear! I wish you were down here with \
me! There are no mice in the air, I'm afraid, but you might catch a bat, and that's very like a mouse, you know. But do cats eat bats, \
I wonder?' And here Alice began to get rather sleepy, and went on saying to herself, in a dreamy sort of way, 'Do cats eat bats? Do \
cats eat bats?' and sometimes, 'Do bats eat cats?' for, you see, as she couldn't answer either question, it didn't much matter which \
way she put it. She felt that she was dozing off, and had just begun to dream that she was walking hand in hand with Dinah, and saying \
to her very earnestly, 'Now, Dinah, tell me the truth: did you ever eat a bat?' when suddenly, thump! thump! down she came upon a heap \
of sticks and dry leaves, and the fall was over.
Alice was not a bit hurt, and she jumped up on to her feet in a moment: she looked up, but it was all dark overhead; before her was \
another long passage, and the White Rabbit was still in sight, hurrying down it. There was not a moment to be lost: away went Alice \
like the wind, and was just in time to hear it say, as it turned a corner, 'Oh my ears and whiskers, how late it's getting!' She was \
close behind it when she turned the corner, but the Rabbit was no longer to be seen: she found herself in a long, low hall, which was \
lit up by a row of lamps hanging from the roof.
There were doors all round the hall, but they were all locked; and when Alice had been all the way down one side and up the other, \
trying every door, she walked sadly down the middle, wondering how she was ever to get out again.`;

/** Texts to compress. */
const TEXTS = [
  ["A novel", ALICE],
  ["An article", `${WEIR}\n\n${LOCKS}`],
  ["This page's program", document.querySelector("script").textContent.slice(0, 12000)],
];

/** A page about a command, in the form of those that small summarizers have learnt. */
const COMMAND = `DROP CONVERSION deletes a conversion that was defined before. You must own the conversion to drop it. The command does \
not fail if the conversion does not exist and IF EXISTS is written; it then issues a notice. CASCADE also drops the objects that depend on \
the conversion, and RESTRICT, the default, refuses to drop it while there are such objects.`;

const FUNCTION = `LIBRARY Math library (libm, -lm) SYNOPSIS #include <math.h> double cosh(double x); float coshf(float x); DESCRIPTION These \
functions return the hyperbolic cosine of x, that is (exp(x) + exp(-x)) / 2. RETURN VALUE If x is a NaN, a NaN is returned. If x is 0, the \
result is 1. If the result overflows, a range error occurs. SEE ALSO acosh(3), cos(3), sinh(3), tanh(3)`;

const DOCUMENTS = [
  ["A database command", COMMAND],
  ["A manual page", FUNCTION],
];

/** Builds buttons that fill an input. */
function showExamples(root, input, examples) {
  at(root).append("Examples:", ...examples.map(([name, text]) => button(name, () => {
    const area = at(input);
    area.value = text;
    area.focus();
    area.setSelectionRange(text.length, text.length);
    // A long document shows its beginning.
    if (text.length > 200) area.setSelectionRange(0, 0);
    area.scrollTop = 0;
    area.dispatchEvent(new Event("input", { bubbles: true }));
  })));
}

