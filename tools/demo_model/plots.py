"""The plots: what happens, told in beats that each know several ways of being said.

A plot has three sections (how it begins, what happens, how it ends).  A section is a row of beats;
a beat is a tuple of templates of which one is told.  An empty template lets a beat be left out.
Facts that several beats of one plot share (a skill and its past tense, say) are its ``facts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Beat = tuple[str, ...]


@dataclass(frozen=True)
class Plot:
    """One kind of story.  ``requests`` ask for it, ``answers`` speak of it afterwards."""

    name: str
    requests: tuple[str, ...]
    begin: tuple[Beat, ...]
    middle: tuple[Beat, ...]
    end: tuple[Beat, ...]
    answers: tuple[tuple[str, str], ...]
    facts: tuple[tuple[Mapping[str, str], ...], ...] = ()


# Tables of prose, wrapped by hand.
# fmt: off
MEET: Beat = (
    "[Soon|After a while|Then|Just then|A little later] {he} met {fa} {j} [called|named] {m}.",
    "[Suddenly|Just then|At that moment] {fa} {j} [called|named] {m} came [along|by|down the "
    "path].",
    "{fA} {j} [called|named] {m} [was sitting|sat|stood] {s4} and saw {him}.",
)
HELLO: Beat = (
    "\"[Hello|Good {day}|Hello there], little one,\" said {m}. \"[What is the matter|Why do you "
    "look so "
    "sad|Can I help you]?\"",
    "\"[What is wrong|What has happened]?\" [asked|said] the {j}.",
    "\"You look [worried|sad|tired],\" said {m}. \"[Tell me what happened.|What is it?]\"",
    "{m} [looked at {n} and|sat down next to {n} and|tilted {fhis} head and] asked what was wrong.",
)
THANKS: Beat = (
    "\"Thank you[| so much|, {m}],\" said {n}. \"[You are a true friend|I will never forget this|"
    "I could not have done it without you].\"",
    "{n} [hugged|thanked] {m} [again and again|with all {his} heart].",
    "\"[Hooray|Hurrah]!\" [cried|shouted|called] {n}, and {m} [laughed|danced|clapped].",
    "\"Thank you!\" [cried|said] {n}. \"[It was nothing|You are welcome|That is what friends are "
    "for],\" "
    "said {m}.",
)
LOSE_HEART: Beat = (
    "{n} [began to cry|was close to tears|felt a lump in {his} throat].",
    "\"Oh [no|dear],\" [said|sighed|whispered] {n}. \"[What shall I do now|What now]?\"",
    "{n} [sat down|stood still] and did not know what to do.",
    "",
)
TOGETHER_END: Beat = (
    "[From that day on|Ever since that day], {n} and {m} were [the best of friends|good friends|"
    "always together].",
    "That [evening|night], {n} and {m} [shared|ate] {a_food} and [talked|laughed] until the "
    "stars came "
    "out.",
    "And when the sun went down, {weather_end}, and {n} [walked|went] home [with a smile|happily|"
    "singing].",
    "{n} [learned|had learned] {lesson}.",
    "That night {n} [slept well|had sweet dreams|fell asleep at once] in {his} {home}.",
    "In the evening {weather_end}, and the two friends [sat|rested] [side by side|together] {p}.",
)
LAST: Beat = (
    "", "", "",
    "[And they|And so they both] lived happily [ever after|for many years].",
    "[The end.|And that was the end of a {weather} {day}.]",
    "And {n} never forgot that {day}.",
    "\"What a day!\" said {n}.",
)

LOST = Plot(
    "lost",
    ("who lost {his} {thing}", "who lost {a_c_thing}", "who was looking for {his} {thing}"),
    (
        ("{n} had {a_c_thing} that {he} [loved|liked] more than anything.",
         "{n}'s [dearest|best] [thing|treasure] was {a_c_thing}.",
         "{n} always [carried|took] {a_c_thing} with {him}."),
        ("One {weather} {day}, the {thing} was gone.",
         "One {day}, {n} could not find the {thing}.",
         "But one {weather} {day}, {n} lost the {thing} {p}."),
    ),
    (
        ("\"Where is my {thing}?\" [cried|asked] {n}.", "\"My {thing} is gone!\" [cried|said] {n}.",
         "{n} [looked|searched] everywhere for the {thing}."),
        ("{He} looked {s1}, but [the {thing} was not there|there was nothing but dust|it was not "
         "there].",
         "{He} searched {s1}, but {he} found only [a leaf|an old sock|a sleepy beetle]."),
        ("Then {he} looked {s2}, but [it was not there either|{he} did not find it there].", ""),
        LOSE_HEART,
        MEET,
        HELLO,
        ("\"I have lost my {c} {thing},\" said "
         "{n}.", "\"I cannot find my {thing},\" [said|sobbed] {n}.",
         "{n} told {m} about the {c} {thing}."),
        ("\"[Let us look together|I will help you|Four eyes see more than two],\" said {m}.",
         "\"[Do not worry|Do not cry],\" said the {j}. \"[We will find it|I will help you "
         "look].\""),
        ("[Together they|The two of them] looked {s3}, and there [was|lay] the {c} {thing}!",
         "They [looked|searched] for a long time. At last {m} looked {s3}, and there it was: the "
         "{c} "
         "{thing}!",
         "\"Have you looked {s3}?\" asked {m}. {n} had not. They went there, and {n} found the "
         "{thing}."),
    ),
    (THANKS, TOGETHER_END, LAST),
    (
        ("What did {n} lose?", "{n} lost {a_c_thing}."),
        ("Where was the {thing}?", "The {thing} was {s3}."),
        ("Who helped {n}?", "{fA} {j} called {m} helped {n}."),
        ("What was {n} looking for?", "{n} was looking for {his} {c} {thing}."),
    ),
)

FRIEND = Plot(
    "friend",
    ("who wanted a friend", "who found a friend", "who was looking for a friend"),
    (
        ("{n} had [toys|books|a soft bed], but {he} had no friends.",
         "[More than anything|Most of all], {n} wanted [a friend|someone to play with].",
         "Every day {n} played alone, and {he} wished for a friend."),
        ("One {weather} {day}, {n} [went out|set off] to find [one|a friend].",
         "One {day}, {n} said, \"I will [go and find|look for] a friend.\"",
         "{weather_begins} {n} [packed {a_food} and|put on {his} {c} scarf and] went outside."),
    ),
    (
        ("[First|First of all] {he} asked a [snail|beetle|cloud|crow], but [it was too busy|it "
         "did not "
         "answer].",
         "{He} walked [a long way|and walked], but {he} met nobody.",
         "{He} said hello to [a tree|a stone|the wind], but of course it said nothing."),
        LOSE_HEART,
        ("Then {he} heard someone [singing|humming|crying|laughing] {s1}.",
         "Then {he} saw someone {s1}.", "But {s1} there was someone else who was all alone."),
        ("It was {fa} {j} [called|named] {m}.", "It was {m}, {fa} {j}."),
        ("\"[Hello|Good {day}],\" said {n}. \"[Would you like to|Do you want to] play with me?\"",
         "\"Why are you here all alone?\" asked {n}. \"[Because I have no friends|Nobody plays "
         "with me],\" "
         "said {m}.",
         "At first {m} was too shy to speak. {n} waited and smiled."),
        ("\"[I would love to|Oh yes, please]!\" said {m}. \"[I was looking for a friend "
         "too|Nobody has asked "
         "me before].\"",
         "\"Then let us be friends,\" said {n}, and {m} [nodded|smiled]."),
        ("They [played hide and seek|built a tower of stones|flew {a_c_thing}|told each other "
         "jokes] "
         "[until it was dark|all day long|and forgot the time].",
         "{n} showed {m} {his} {c} {thing}, and they played with it [all {day}|for hours].",
         "They shared {a_food} and [told stories|counted the birds|laughed a lot]."),
    ),
    (TOGETHER_END, ("{n} was [not alone any more|never lonely again].", ""), LAST),
    (
        ("Who became {n}'s friend?", "{fA} {j} called {m} became {n}'s friend."),
        ("What did {n} want?", "{n} wanted a friend."),
        ("Where was {m}?", "{m} was {s1}."),
    ),
)

STORM = Plot(
    "storm",
    ("who was caught in a storm", "and a storm", "who waited for the end of a storm"),
    (
        ("One {weather} {day}, {n} was [on the way home|out for a walk|picking flowers] {p}.",
         "One {weather} {day}, {n} was playing {p} with {a_c_thing}."),
        ("[Suddenly|All at once] the sky turned black and it began to thunder.",
         "Then dark clouds came, and [a storm began|the first drops fell].",
         "[Far away|Over the {place}] there was a flash of lightning. A storm was coming."),
    ),
    (
        ("{n} ran as fast as {he} could, but the rain was faster.",
         "The wind [howled|roared], and {n} could hardly [see|stand].",
         "Soon {n} was wet from head to toe."),
        ("{He} hid {s1}, but it was [too wet|too cold|not safe] there.", ""),
        LOSE_HEART,
        ("Then {he} saw a [small|warm|yellow] light "
         "{s2}.", "Then {he} heard a voice. \"[Over here|Come in "
         "here]!\" it called.", "Then a door opened {s2}."),
        ("It [belonged to|was the home of] {fa} {j} [called|named] {m}.",
         "{fA} {j} [called|named] {m} lived there."),
        ("\"[Come in and get dry|Come in, before you catch a cold],\" said {m}.",
         "\"[You poor thing|You are all wet],\" said the {j}. \"Sit down by the fire.\""),
        ("{m} gave {n} [a warm blanket|a cup of hot tea|a dry coat] and {a_food}.",
         "They sat by the fire and ate {a_food} while the thunder rolled."),
        ("\"Are you not afraid of the storm?\" asked {n}. \"[Not when I have company|A storm is "
         "only loud],\" "
         "said {m}.", "", "{m} told {n} [old stories|funny stories] until the storm was over."),
        ("[In the morning|After an hour|At last] the storm was over, and [a rainbow stood over "
         "the {place}|"
         "the sun came out].",),
    ),
    (THANKS, TOGETHER_END, LAST),
    (
        ("Who let {n} in?", "{fA} {j} called {m} let {n} in."),
        ("What was the weather like?", "There was a storm with thunder and rain."),
        ("Who helped {n}?", "{fA} {j} called {m} helped {n}."),
    ),
)

LEARN = Plot(
    "learn",
    ("who wanted to {do}", "who learned to {do}", "who could not {do}"),
    (
        ("{n} wanted to {do} more than "
         "anything.", "{n} had one [great|big] wish: {he} wanted to {do}.",
         "[Everyone {p}|All the others] could {do}, but {n} could not."),
        ("One {weather} {day}, {he} [tried|decided to try] it for the first time.",
         "One {day}, {he} said, \"Today I will learn to {do}.\"",),
    ),
    (
        ("{He} tried and tried, but "
         "{fail}.", "It [was harder than it looked|did not go well]: {fail}."),
        ("The others [laughed|shook their heads]. \"You will never {do},\" they said.", "",
         "\"I will never {do},\" [said|sighed] {n}."),
        LOSE_HEART,
        MEET,
        ("{m} [had watched everything|knew how to {do} very well].",
         "\"[I have seen you try|You are very brave to try],\" said {m}."),
        ("\"[I can teach you|I will show you how],\" said {m}. \"{tip}.\"",
         "\"It took me a long time too,\" said the {j}. \"{tip}.\""),
        ("[Every day|Day after day] they practised together {p}.",
         "They practised [for a whole week|every morning|until the sun went down].",
         "{n} tried again, and then once more."),
        ("[And then one day|At last], {n} {did}! "
         "{joy}", "On the [seventh|third|tenth] day it worked. {n} {did}! "
         "{joy}"),
    ),
    (THANKS, TOGETHER_END, LAST),
    (
        ("What did {n} want to learn?", "{n} wanted to learn to {do}."),
        ("Who taught {n}?", "{fA} {j} called {m} taught {n}."),
        ("Who helped {n}?", "{fA} {j} called {m} helped {n}."),
    ),
    ((
        {"do": "swim", "did": "swam", "fail": "{he} swallowed a lot of water",
         "tip": "Take a deep breath and kick with your legs",
         "joy": "The water [sparkled|splashed] all around {him}."},
        {"do": "dance", "did": "danced", "fail": "{he} stepped on {his} own toes",
         "tip": "Listen to the music first", "joy": "Everyone clapped in time."},
        {"do": "sing", "did": "sang", "fail": "{his} voice was only a squeak",
         "tip": "Open your mouth wide and think of something nice",
         "joy": "Even the birds grew quiet to listen."},
        {"do": "fly", "did": "flew", "fail": "{he} fell into a bush every time",
         "tip": "Wait for the wind and do not look "
                "down", "joy": "The {place} looked so small from above."},
        {"do": "read", "did": "read", "fail": "the letters [jumped|danced] before {his} eyes",
         "tip": "Go slowly, one letter after the other",
         "joy": "{He} read [a whole page|a whole story] aloud."},
        {"do": "skate", "did": "skated", "fail": "{he} slipped and sat down on the ice",
         "tip": "Bend your knees a little", "joy": "{He} made a big circle on the ice."},
        {"do": "paint", "did": "painted", "fail": "the paint [dripped|ran] all over the floor",
         "tip": "Look closely before you begin", "joy": "It was a picture of the {place}."},
        {"do": "bake", "did": "baked", "fail": "the bread was as black as coal",
         "tip": "Do not forget the clock", "joy": "The whole {place} smelled of warm bread."},
        {"do": "whistle", "did": "whistled", "fail": "only air came out",
         "tip": "Make your lips round, like a little o", "joy": "It was a clear and happy tune."},
        {"do": "climb", "did": "climbed", "fail": "{he} slid down again and again",
         "tip": "Look up and never look "
                "down", "joy": "From the top {he} could see the whole {place}."},
    ),),
)

RESCUE = Plot(
    "rescue",
    ("who helped {fa_plain} {j}", "who saved {fa_plain} {j}", "who helped someone in trouble"),
    (
        ("One {weather} {day}, {n} was walking "
         "{p}.", "One {weather} {day}, {n} went for a walk {p}.",
         "{weather_begins} {n} was on {his} way [home|to the market]."),
        ("[Suddenly|All at once|Then] {he} heard a [small|thin|sad] voice. \"Help! Help!\" it "
         "[cried|called].",
         "Then {he} heard someone [crying|calling for help]."),
    ),
    (
        ("{n} [followed|ran towards] the voice and found {fa} {j} [called|named] {m}.",
         "It was {fa} {j} [called|named] {m}."),
        ("{m} was {stuck}.", "The poor {j} was {stuck}."),
        ("\"[Please help me|I cannot get out],\" said {m}. \"[I have been here all day|I am so "
         "tired].\"",
         "\"How did you get there?\" asked {n}. \"[I was not looking|I slipped],\" said {m}."),
        ("{n} [thought for a moment|looked "
         "around].", "\"Do not be afraid,\" said {n}. \"I will help you.\"",
         "First {n} pulled with both hands, but it was no use."),
        ("Then {he} had an idea. {idea}", "\"I know!\" [cried|said] {n}. {idea}"),
        ("[One, two, three, and|With a last big effort] {m} was free!",
         "It took [a long time|all {his} strength], but at last {m} was free."),
    ),
    (
        ("\"You saved me,\" said {m}. \"[I will never forget that|You are so kind]!\"",
         "\"Thank you, {n}!\" [cried|said] {m}. \"[Let me share my dinner with you|You are my "
         "hero].\"",
         "{m} thanked {n} and gave {him} {a_c_thing}."),
        TOGETHER_END, LAST),
    (
        ("Who needed help?", "{fA} {j} called {m} needed help."),
        ("What had happened to {m}?", "{m} was {stuck}."),
        ("Who helped {m}?", "{n} the {k} helped {m}."),
    ),
    ((
        {"stuck": "stuck in the "
                  "mud", "idea": "{He} laid a [plank|branch] over the mud and held out a rope."},
        {"stuck": "at the bottom of a deep "
                  "hole", "idea": "{He} let down a long rope and held it tight."},
        {"stuck": "caught in a net", "idea": "{He} untied the knots, one after the other."},
        {"stuck": "high up in a "
                  "tree", "idea": "{He} fetched a ladder and leaned it against the tree."},
        {"stuck": "under a heavy "
                  "branch", "idea": "{He} pushed a strong stick under it and leaned on it."},
        {"stuck": "caught in a thorn bush", "idea": "{He} bent the thorns aside very slowly."},
        {"stuck": "on a stone in the middle of a "
                  "stream", "idea": "{He} made a bridge from an old log."},
        {"stuck": "locked in a dark shed", "idea": "{He} found the key under a flower pot."},
    ),),
)

SHARE = Plot(
    "share",
    ("who did not want to share", "who learned to share", "about sharing"),
    (
        ("One {weather} {day}, {n} had {a_food} all for {himself}.",
         "One {weather} {day}, {n} [made|got] {a_food}.",),
        ("It smelled wonderful. \"[I will not share this with anyone|This is all mine],\" said "
         "{n}.",
         "{He} [hid|sat down] {s1}, so that nobody would [see it|ask for some]."),
    ),
    (
        ("Then {fa} {j} [called|named] {m} came "
         "by.", "But {fa} {j} [called|named] {m} [saw|smelled] it."),
        ("\"I have not eaten [all day|since yesterday],\" said {m}. \"May I have a little?\"",
         "\"I am so hungry,\" said {m}. \"[Could you give me a bite|Is there some for me]?\""),
        ("\"No,\" said {n}. \"[It is mine|There is not enough for two].\"",
         "{n} shook {his} head. \"[Find your own food|This is mine],\" {he} said."),
        ("{m} [went away sadly|looked down and walked "
         "away].", "\"I see,\" said {m} and went away."),
        ("{n} [began to eat|took a bite], but [it did not taste good|it tasted of nothing].",
         "But now {n} was not happy. {He} kept thinking of the hungry {j}."),
        ("\"[It is no fun to eat alone|I was not nice],\" [said|thought] {n}.", ""),
        ("So {he} ran after {m}. \"[Wait|Stop]!\" {he} called. \"[Please eat with me|There is "
         "enough for "
         "both of us].\"",
         "{He} looked for {m} and found {fhim} {s2}. \"I am sorry,\" said {n}. \"[Let us "
         "share|Half of it is "
         "yours].\""),
        ("They sat down and shared the food, and [now it tasted wonderful|it was the best meal "
         "ever].",
         "{m} smiled, and they ate it together. [Never had anything tasted so good|It tasted "
         "twice as good].",
         ),
    ),
    (TOGETHER_END, ("\"Sharing makes everything better,\" said {n}.", ""), LAST),
    (
        ("Who was hungry?", "{fA} {j} called {m} was hungry."),
        ("What did {n} have?", "{n} had {a_food}."),
        ("Did {n} share in the end?", "Yes, in the end {n} shared with {m}."),
    ),
)

FEAR = Plot(
    "fear",
    ("who was afraid of {dread}", "who was scared of {dread}", "about being afraid"),
    (
        ("There was [just|only] one thing: {n} was afraid of {dread}.",
         "But {n} had a secret. {He} was afraid of {dread}."),
        ("{He} never told anyone about it.",
         "Nobody knew about it, not even {his} [mother|brother|grandmother].", ""),
    ),
    (
        ("One {weather} {day}, {fa} {j} [called|named] {m} came to visit.",
         "{n} had a friend, {fa} {j} [called|named] {m}. One {weather} {day} they were out {p}."),
        ("\"[Come with me|Let us go on an adventure],\" said {m}, \"[I want to show you "
         "something|there is "
         "something wonderful there].\"", ""),
        ("But {scene}.", "But on the way, {scene}."),
        ("{n} [began to shake|stood still|hid {s1}]. \"I cannot go on,\" {he} [said|whispered].",
         "\"I am afraid,\" [said|whispered] {n}, and {his} knees shook."),
        ("{m} did not laugh. \"[Everyone is afraid of something|I am afraid of spiders|That is "
         "all right],\" "
         "{fhe} said.",
         "\"[Give me your hand|Hold on to me],\" said {m}. \"[We will go together|You are not "
         "alone].\""),
        ("{n} took a deep breath and [went on, step by step|counted to ten].",
         "[Slowly, very slowly|Step by step], {n} went on."),
        ("And do you know what? {calm}", "[After a while|Then] something strange happened. {calm}"),
        ("\"[I did it|I am not afraid any more]!\" [cried|shouted] {n}.",
         "\"[Is that all|It is not so bad],\" said {n} and laughed."),
    ),
    (TOGETHER_END, LAST),
    (
        ("What was {n} afraid of?", "{n} was afraid of {dread}."),
        ("Who helped {n}?", "{fA} {j} called {m} helped {n}."),
        ("Was {n} still afraid at the end?", "No, at the end {n} was not so afraid any more."),
    ),
    ((
        {"dread": "the dark", "scene": "it grew dark around them",
         "calm": "In the dark {he} could see a thousand stars."},
        {"dread": "thunder", "scene": "it began to thunder",
         "calm": "The thunder sounded just like a big drum."},
        {"dread": "deep water", "scene": "they came to a deep pond",
         "calm": "The water carried {him} like a soft bed."},
        {"dread": "heights", "scene": "they had to cross a high bridge",
         "calm": "From up there the whole {place} looked like a toy."},
        {"dread": "strangers", "scene": "a stranger came towards them",
         "calm": "The stranger smiled and gave them [an apple|a flower]."},
        {"dread": "ghosts", "scene": "something white moved in front of them",
         "calm": "It was only a [sheet|shirt] on a washing line."},
        {"dread": "big dogs", "scene": "a big dog ran towards them",
         "calm": "The dog only wanted to play and wagged its tail."},
        {"dread": "caves", "scene": "they came to a dark cave",
         "calm": "The walls of the cave were full of shining crystals."},
    ),),
)
