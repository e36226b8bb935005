"""More plots, and the row of all of them."""

from __future__ import annotations

from .plots import (
    FEAR,
    FRIEND,
    HELLO,
    LAST,
    LEARN,
    LOSE_HEART,
    LOST,
    MEET,
    RESCUE,
    SHARE,
    STORM,
    THANKS,
    TOGETHER_END,
    Plot,
)

# Tables of prose, wrapped by hand.
# fmt: off
GIFT = Plot(
    "gift",
    ("who looked for a gift", "and a birthday", "who had no present for {his} friend"),
    (
        ("{n} had a friend, {fa} {j} [called|named] "
         "{m}.", "{n}'s best friend was {fa} {j} [called|named] "
         "{m}."),
        ("[Tomorrow|The next day] was {m}'s birthday, and {n} had no present.",
         "One {weather} {day}, {n} remembered that it was {m}'s birthday."),
    ),
    (
        ("{n} went to the [shop|market] and saw {a_c_thing}, but {he} had no money.",
         "{He} wanted to buy {a_c_thing}, but it cost too much."),
        LOSE_HEART,
        ("\"What would make {m} happy?\" {he} wondered.", "{n} thought and thought."),
        ("Then {he} had an idea. \"I will make something myself!\" {he} said.",
         "\"The best gifts are made by hand,\" {n} said to {himself}."),
        ("{He} went out and looked {s1}. There {he} found {stuff}.",
         "{S1} {he} found {stuff}."),
        ("All {day} {he} worked, and [by evening|at last] {he} had made {present}.",
         "{He} [worked until late at night|sat down and worked], and soon {present} was ready."),
        ("When {m} opened the parcel, {fhis} eyes [shone|grew wide].",
         "\"Happy birthday!\" said {n} and gave {m} {present}."),
        ("\"This is the most beautiful present of all,\" said {m}.",
         "\"Did you make this [yourself|for me]?\" asked {m}. \"[I love it|It is wonderful]!\""),
    ),
    (TOGETHER_END, LAST),
    (
        ("Whose birthday was it?", "It was {m}'s birthday."),
        ("What did {n} give {m}?", "{n} gave {m} {present}."),
        ("Where did {n} find {stuff}?", "{n} found {stuff} {s1}."),
    ),
    ((
        {"stuff": "some blue feathers", "present": "a feather hat"},
        {"stuff": "seven round pebbles", "present": "a necklace of pebbles"},
        {"stuff": "a piece of soft wood", "present": "a little wooden flute"},
        {"stuff": "many wild flowers", "present": "a crown of flowers"},
        {"stuff": "an old wooden box", "present": "a music box"},
        {"stuff": "a ball of red wool", "present": "a warm red scarf"},
        {"stuff": "some coloured paper", "present": "a paper lantern"},
    ),),
)

MYSTERY = Plot(
    "mystery",
    ("who heard a strange sound", "and a strange noise", "who solved a mystery"),
    (
        ("One {weather} night, {n} was woken by a strange [noise|sound].",
         "One evening, {n} heard a strange [noise|sound] outside {his} {home}."),
        ("{Noise}, it went. {Noise}!", "\"{Noise}! {Noise}!\" it went in the dark."),
    ),
    (
        ("\"Who is there?\" [asked|called] {n}, but nobody answered.",
         "{n} [pulled the blanket over {his} head|held {his} breath] and listened."),
        ("At last {he} took a lantern and went outside.",
         "{He} [put on {his} shoes|took a candle] and went to look."),
        ("{He} looked {s1}. Nothing was there.", "First {he} looked "
         "{s1}, but [all was quiet|nobody was there]."),
        ("There were small [tracks|footprints] on the ground, and {n} followed them.",
         "\"[I must be brave|I want to know what it is],\" {n} said and went on."),
        ("The [tracks|sound] led {him} [on and on, until|to a spot where] {he} saw something {s2}.",
         "Then {he} saw two [bright|big|round] eyes {s2}."),
        ("It was {fa} {j} [called|named] {m}, and {reason}.",
         "It was only {fa} {j} [called|named] {m}! You see, {reason}."),
        ("\"I am sorry that I woke you,\" said "
         "{m}.", "\"[Oh|Dear me], was I too loud?\" asked {m}.",
         "{n} laughed out loud. \"[So it was you|What a fright you gave me]!\" {he} said."),
        ("\"[Let me help you|Come in and warm yourself],\" said {n}, and so they sat together "
         "and ate "
         "{a_food}.", "{n} [gave {m} a hand|helped {m}], and soon all was [quiet|well]."),
    ),
    ((TOGETHER_END[0], TOGETHER_END[3], TOGETHER_END[4]), LAST),
    (
        ("What did {n} hear?", "{n} heard a strange sound."),
        ("Who made the sound?", "{fA} {j} called {m} made the sound."),
        ("Where was {m}?", "{m} was {s2}."),
    ),
    ((
        {"noise": "tap, tap, tap", "reason": "{fhe} was building a bed"},
        {"noise": "rumble, rumble", "reason": "{fhis} belly was rumbling with hunger"},
        {"noise": "scratch, scratch", "reason": "{fhe} was digging for a lost coin"},
        {"noise": "hoo, hoo", "reason": "{fhe} was singing a song to the moon"},
        {"noise": "splash, splash", "reason": "{fhe} was washing {fhis} socks"},
        {"noise": "click, clack", "reason": "{fhe} was learning to dance in wooden shoes"},
        {"noise": "achoo, achoo", "reason": "{fhe} had caught a bad cold"},
    ),),
)

RACE = Plot(
    "race",
    ("and a race", "who wanted to win a race", "about a race"),
    (
        ("Every [year|summer] there was a great race {p}, and {n} wanted to win it.",
         "One {weather} {day}, a great race was held {p}."),
        ("The winner would get {a_c_thing}.", "There was a prize for the fastest: {a_c_thing}."),
        ("{fA} {j} [called|named] {m} wanted to win it too.",
         "The fastest of the others was {fa} {j} [called|named] {m}."),
    ),
    (
        ("\"I will win,\" said {m}. \"[We will see|Let us just have fun],\" said {n}.",
         "\"[You are much too slow|You can never beat me],\" said {m}. {n} said nothing."),
        ("\"Ready, steady, go!\" [called|cried] the judge, and off they went.",
         "[The bell rang|The whistle blew], and everyone began to run."),
        ("{n} and {m} were [side by side|ahead of all the others].",
         "Soon {m} was far ahead, but {n} did not give up."),
        ("But {s1}, {m} [stumbled and fell|hurt {fhis} foot].",
         "Then {m} [slipped|tripped] and fell. \"[Ouch|Oh, my foot]!\" {fhe} cried."),
        ("{n} [could have run on|could see the finish], but {he} stopped.",
         "{n} thought of the prize. Then {he} turned around."),
        ("\"[Lean on me|Take my hand],\" said {n}. \"[We will finish together|I will not leave "
         "you here].\"",
         "{n} helped {m} up, and they went on arm in arm."),
        ("They were the last to cross the line, but everyone [clapped|cheered] for them.",
         "Together they crossed the line, and the crowd [cheered|clapped]."),
        ("The judge gave them both a prize, because a good heart counts more than fast feet.",
         "\"You should have won,\" said {m}. \"[I won a friend|I have won something better],\" "
         "said {n}."),
    ),
    (TOGETHER_END, LAST),
    (
        ("What was the prize?", "The prize was {a_c_thing}."),
        ("Who fell?", "{m} the {j} fell."),
        ("Who did {n} race against?", "{n} raced against {fa} {j} called {m}."),
    ),
)

BUILD = Plot(
    "build",
    ("who built {work}", "who wanted to build {work}"),
    (
        ("One {weather} {day}, {n} decided to build {work}.",
         "{n} had always wanted to have {work}. One {weather} {day}, {he} began to build it."),
        ("\"[I can do it all by myself|I do not need any help],\" {he} said.",
         "{He} took a hammer, some nails and some wood.",),
    ),
    (
        ("{He} worked [all {day}|from early to late], and soon it was almost ready.",
         "First {he} drew a plan, and then {he} set to work {p}."),
        ("But then there was a loud crack, and {broke}.", "But when {n} tried it out, {broke}."),
        LOSE_HEART,
        MEET,
        ("\"What are you building?\" asked {m}. \"It was going to be {work},\" said {n}.",
         "\"That looks like {work},\" said {m}. \"It was,\" [sighed|said] {n}."),
        ("\"[Let me help you|Two can do more than one],\" said the {j}. \"[You hold the wood, "
         "and I will "
         "use the hammer|We will make it stronger this time].\"",),
        ("{n} [did not like to take help, but {he} nodded|was glad to have help].", ""),
        ("They found more wood {s2} and [worked side by side|began again].",
         "{m} fetched strong ropes, and {n} measured everything twice."),
        ("[This time|And this time] it held. {works}", "In the evening it was finished. {works}"),
    ),
    (THANKS, TOGETHER_END, LAST),
    (
        ("What did {n} build?", "{n} built {work}."),
        ("Who helped {n}?", "{fA} {j} called {m} helped {n}."),
        ("What went wrong?", "At first {broke}."),
    ),
    ((
        {"work": "a boat", "broke": "the boat began to "
                                    "sink", "works": "The boat sailed like a swan."},
        {"work": "a tree house", "broke": "the floor fell down",
         "works": "From the tree house they could see far and wide."},
        {"work": "a bridge", "broke": "the bridge broke in the middle",
         "works": "Everyone could walk across the bridge."},
        {"work": "a swing", "broke": "the rope tore", "works": "They took turns on the swing."},
        {"work": "a sandcastle", "broke": "the tower fell over",
         "works": "It was the tallest sandcastle of all."},
        {"work": "a wagon", "broke": "a wheel came off", "works": "The wagon rolled and rolled."},
        {"work": "a flying machine", "broke": "one wing fell off",
         "works": "The flying machine rose into the air."},
    ),),
)

BROKEN = Plot(
    "broken",
    ("who broke something", "who told the truth", "who had to say sorry"),
    (
        ("{n} had a friend, {fa} {j} [called|named] {m}. {m} owned {a_c_thing}.",
         "{n} lived next door to {fa} {j} [called|named] {m}, who had {a_c_thing}."),
        ("One {weather} {day}, {n} [borrowed|played with] the {thing}, and it broke.",
         "One {weather} {day}, {n} dropped the {thing}, and it broke in two."),
    ),
    (
        ("\"[Oh no|Oh dear]!\" [whispered|said] {n}. \"{m} will be so [angry|sad].\"",
         "{n} looked around. Nobody had seen it."),
        ("Quickly {he} hid the {thing} {s1}.", "{He} hid the pieces {s1} and went home."),
        ("Soon {m} came by. \"Have you seen my {thing}?\" {fhe} asked.",
         "The next day {m} was looking for the {thing}. \"Do you know where it is?\" {fhe} asked."),
        ("\"No,\" said {n}, but {his} [ears grew hot|heart felt heavy].",
         "{n} shook {his} head. {He} could not look at {m}."),
        ("That night {n} could not sleep.", "All {day} {he} had a stone in {his} belly.",
         "\"[I must tell the truth|A lie only grows],\" [thought|said] {n}."),
        ("In the morning {he} went to {m}. \"I broke your {thing},\" {he} said. \"I am so sorry.\"",
         "At last {n} ran to {m} and told {fhim} everything. \"I am sorry,\" {he} said."),
        ("{m} was [silent|quiet] for a moment. \"[Thank you for telling me|It was brave of you "
         "to tell me],"
         "\" {fhe} said.",
         "\"I am sad about the {thing},\" said {m}, \"but I am glad that you told me the truth.\""),
        ("Together they [mended|repaired] the {thing} with [glue|string and wax].",
         "Then they fetched the {thing} from its hiding place and mended it."),
    ),
    (TOGETHER_END, LAST),
    (
        ("What did {n} break?", "{n} broke {a_c_thing}."),
        ("Who owned the {thing}?", "{fA} {j} called {m} owned the {thing}."),
        ("Where did {n} hide the {thing}?", "{n} hid the {thing} {s1}."),
        ("Did {n} tell the truth?", "Yes, in the end {n} told the truth."),
    ),
)

WAY_HOME = Plot(
    "way_home",
    ("who got lost", "who could not find the way home", "who lost {his} way"),
    (
        ("One {weather} {day}, {n} [followed a butterfly|chased a leaf|went for a long walk] and "
         "did not look "
         "at the way.",
         "One {weather} {day}, {n} went out to [pick berries|look for mushrooms|explore] {p}."),
        ("When {he} looked up, nothing [looked familiar|was as {he} knew it]. {n} was lost.",
         "Soon {he} did not know where {he} was."),
    ),
    (
        ("{He} went left, and {he} went right, but every path looked the same.",
         "{He} climbed up to look around, but {he} could not see {his} {home}."),
        ("It was getting [dark|late|cold].", "The sun was already going down."),
        LOSE_HEART,
        MEET,
        HELLO,
        ("\"I [am lost|cannot find my way home],\" said "
         "{n}.", "\"I want to go home,\" [sobbed|said] {n}."),
        ("\"Where do you live?\" asked {m}. \"In a {home} with a {c} door,\" said {n}.",
         "\"What does your home look like?\" asked {m}. \"It has a {c} door,\" said {n}."),
        ("\"[I know that house|I have seen it]!\" said the {j}. \"[Follow me|Come with me]!\"",
         "\"Then it is not far,\" said {m}. \"I will [take you there|show you the way].\""),
        ("They walked [along the path|through the tall grass] and [sang a song|talked] all the "
         "way.",
         "{m} went ahead and {n} followed, step by step."),
        ("[At last|Before long] {n} saw the {c} "
         "door.", "And there was the {home} with the {c} door!"),
    ),
    (THANKS, TOGETHER_END, LAST),
    (
        ("Who showed {n} the way?", "{fA} {j} called {m} showed {n} the way."),
        ("What was the door like?", "The door was {c}."),
        ("Who helped {n}?", "{fA} {j} called {m} helped {n}."),
    ),
)

SEED = Plot(
    "seed",
    ("who planted a seed", "and a seed", "who grew {plant}"),
    (
        ("One {weather} {day}, {n} found a [tiny|small|strange] seed {s1}.",
         "One {weather} {day}, {n} saw a small seed lying {s1}."),
        ("\"What will it be?\" {he} "
         "[asked|wondered].", "{He} dug a hole and put it into the earth.",
         "{He} planted it in front of {his} {home}."),
    ),
    (
        ("Every day {n} [watered it|brought it water], but nothing happened.",
         "{He} watered it and waited. A week went by, but there was nothing to see."),
        LOSE_HEART,
        MEET,
        ("\"My seed will not grow,\" said "
         "{n}.", "\"What are you waiting for?\" asked {m}. \"For my seed to "
         "grow,\" said {n}."),
        ("\"Good things need time,\" said {m}. \"[Sing to it|Wait a little longer|Give it some "
         "sun].\"",
         "\"[A seed is never in a hurry|You must be patient],\" said the {j}."),
        ("So they [sat down and waited together|sang to the seed every evening|told it stories].",),
        ("[And one morning|Then, after a warm rain], a green leaf looked out of the earth.",
         "At last a little green tip came up."),
        ("It grew and grew, and in the end it was {plant}.",
         "In summer it was {plant}, the [finest|biggest] far and wide."),
    ),
    (("\"[Look|See]!\" [cried|called] {n}. \"It was worth waiting "
      "for!\"", THANKS[0]), TOGETHER_END, LAST),
    (
        ("What did {n} find?", "{n} found a seed."),
        ("What did the seed become?", "The seed became {plant}."),
        ("Where was the seed?", "The seed was {s1}."),
    ),
    ((
        {"plant": "a tall sunflower"}, {"plant": "a giant pumpkin"}, {"plant": "an apple tree"},
        {"plant": "a red rose "
                  "bush"}, {"plant": "a huge strawberry plant"}, {"plant": "a cherry tree"},
        {"plant": "a bean plant as high as a house"},
    ),),
)

TREASURE = Plot(
    "treasure",
    ("who found a treasure", "and a treasure map", "who looked for a treasure"),
    (
        ("One {weather} {day}, {n} found an old map {s1}.",
         "One {weather} {day}, the wind blew an old map in front of {n}'s feet."),
        ("There was a red cross on it. \"[A treasure|That must be a treasure]!\" "
         "[cried|whispered] {n}.",
         "\"A treasure map!\" [cried|said] {n}. \"I wonder what is hidden there.\""),
    ),
    (
        ("{He} showed the map to {his} friend {m}, {fa} {j}.",
         "{n} asked {his} friend to come along, {fa} {j} [called|named] {m}."),
        ("\"[First we must|We have to] {step1},\" [said|read] {m}.",),
        ("They did so, and then they had to "
         "{step2}.", "After that they had to {step2}. It was not easy."),
        ("\"I am tired,\" said {n}. \"[Only a little further|We are almost there],\" said {m}.", "",
         "They stopped to eat {a_food}."),
        ("[At last|Finally] they came to the red cross. It was {s2}.",
         "The red cross was {s2}."),
        ("They dug and dug until they [hit|found] an old chest.",
         "They dug with their hands, and there was a wooden box."),
        ("Inside there was no gold. There was {a_c_thing} and a letter: \"{Treasure_note}.\"",
         "In it lay {a_c_thing} and a note. \"{Treasure_note},\" it said."),
        ("{n} and {m} looked at each other and laughed.", "\"That is true,\" said {m}.",
         "\"Then we are rich already,\" said {n}."),
    ),
    (TOGETHER_END, LAST),
    (
        ("What did {n} find?", "{n} found an old map and then {a_c_thing}."),
        ("Where was the treasure?", "The treasure was {s2}."),
        ("Who went with {n}?", "{fA} {j} called {m} went with {n}."),
    ),
    (
        ({"step1": "cross the old bridge"}, {"step1": "find the tallest tree"},
         {"step1": "follow the stream"}, {"step1": "walk a hundred steps"}),
        ({"step2": "climb over a wall"}, {"step2": "crawl through a tunnel"},
         {"step2": "jump over a ditch"}, {"step2": "solve a riddle"}),
        ({"Treasure_note": "The greatest treasure is a friend who comes along"},
         {"Treasure_note": "Whoever finds this shall share it"},
         {"Treasure_note": "The way was the treasure"}),
    ),
)

PLOTS: tuple[Plot, ...] = (
    LOST, FRIEND, STORM, LEARN, RESCUE, SHARE, FEAR, GIFT, MYSTERY, RACE, BUILD, BROKEN, WAY_HOME,
    SEED, TREASURE,
)
