"""``potluck.Model``: an in-process model, for use from Python."""

from __future__ import annotations

import logging
import operator
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TypedDict, Unpack

from potluck.catalog import (
    ModelDescription,
    describe_model,
    load_chat_template,
    load_tokenizer,
    open_vocabulary,
)
from potluck.catalog.small_models import check_small
from potluck.drafting.model import ModelDrafts
from potluck.drafting.sources import draft_source, names_model
from potluck.engines.loading import PackedCache, default_packed_folder
from potluck.engines.loading.load import LoadedStage
from potluck.engines.loading.prepare import LoadPlan, prepare_stages
from potluck.errors import ParameterError
from potluck.grammars.check import GrammarChecker
from potluck.host.cores import own_usable_cores, threads_problem
from potluck.local.drafts import DraftingThread
from potluck.local.generation import ChatOutput, Generation, output_format, tool_use
from potluck.local.loading import find_unit, plan_load, room_on
from potluck.local.pipeline import LocalPipeline
from potluck.local.scoring import (
    DocumentScore,
    Embeddings,
    Scores,
    embed_tokens,
    rank_documents,
    score_tokens,
)
from potluck.models.states import num_states_of
from potluck.scheduling.dispatcher import Dispatcher
from potluck.scheduling.frame_limits import sequences_in_step
from potluck.scheduling.limits import DEFAULT_CONTEXT_TOKENS, SchedulerLimits
from potluck.scheduling.vectors import check_dimensions
from potluck.text.chat import ChatTemplate, chat_ending, prompt_chat
from potluck.text.detokenize import StreamingDetokenizer
from potluck.text.rerank import check_labels, encode_pair, rerank_template
from potluck.types.choices import DEFAULT_DRAFT, OFF, ArithmeticChoice, Quantization
from potluck.types.drafting import DraftSource
from potluck.types.engine import NO_EXPERTS, ExpertUse
from potluck.types.output import ToolMode
from potluck.types.ranges import MAX_TOP_LOGPROBS, RANGES, require_number, shown
from potluck.types.sampling import merged_sampling, validate_sampling
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SamplingParams
from potluck.types.text import ChatEnding, ChatMessage, Tokenizer, Tool
from potluck.weights.load import LoadReport

_log = logging.getLogger(__name__)


class SamplingOptions(TypedDict, total=False):
    """Keyword arguments of ``generate`` and ``chat``; see ``SamplingParams`` for their meaning.

    Defaults come from the model's ``generation_config.json``, or else are neutral. If ``seed`` is
    None, a random one is used.
    """

    temperature: float
    top_k: int | None
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    logprobs: bool
    top_logprobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """The progress of loading weights, or of downloading their files before that, in bytes.

    With ``is_warming_up``, an engine has its weights and is compiling its kernels.
    """

    done_bytes: int
    total_bytes: int
    is_fetching: bool = False
    is_warming_up: bool = False


class Model:
    """An open model. ``generate`` and ``chat`` may be called from several threads at once.

    with Model.open("demo") as model:
        for piece in model.generate("Once upon a time", max_tokens=60):
            print(piece.text, end="", flush=True)
    """

    def __init__(
        self,
        description: ModelDescription,
        plan: LoadPlan,
        dispatcher: Dispatcher,
        *,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        stages: tuple[LoadedStage, ...],
        small: Model | None = None,
        drafting: DraftingThread | None = None,
    ) -> None:
        """Use :meth:`open`."""
        self._dispatcher = dispatcher
        self._drafting = drafting
        self.draft_model = small
        self._chat_template = chat_template
        self._grammars = GrammarChecker()
        self.description = description
        self.plan = plan
        self.stages = stages
        self.tokenizer = tokenizer

    @classmethod
    def open(
        cls,
        model: str,
        *,
        stages: int = 1,
        context_tokens: int | None = None,
        cache_tokens: int | None = None,
        num_states: int | None = None,
        default_states: int | None = None,
        num_threads: int | None = None,
        isa: str | None = None,
        backend: str | None = None,
        allow_software: bool = False,
        quantization: Quantization | None = Quantization.NONE,
        mmap: bool = False,
        arithmetic: ArithmeticChoice = ArithmeticChoice.EXACT,
        packed_cache_bytes: int | None = None,
        prefix_cache: bool = True,
        draft: str = DEFAULT_DRAFT,
        on_progress: Callable[[LoadProgress], None] | None = None,
    ) -> Model:
        """Find MODEL and load it.

        ``model``: a Hugging Face directory, a ``.gguf`` file, a hub id, or ``demo``.
        ``stages``: the number of in-process stages.
        ``context_tokens``: the longest sequence; by default the model's maximum, at most 4096.
        ``cache_tokens``: positions shared by all sequences; by default one full context.
        ``num_states``: slots for states of sequences and their checkpoints, for models with state;
        by default as many as fit into 512 MiB, from 8 to 64.
        ``default_states``: another default for ``num_states``.
        ``num_threads``: the number of threads; by default the number of usable cores.
        ``isa``: an instruction set such as ``avx2``; by default the best that works.
        ``backend``: a backend such as ``tinygrad:CL``, on the first device on which it works, or a
        unit by its id; by default ``native``, which uses the CPU. A process can use only one device
        through tinygrad.
        ``allow_software``: also use software-emulated devices such as PoCL.
        ``quantization``: the quantization of weights stored as floats; None means the most precise
        one that fits.
        ``mmap``: store the weights in a file in the user's cache, and map it
        (``docs/guides/mapped-weights.md``).
        ``arithmetic``: exact, which is bit-identical on every CPU, or fast, if the CPU supports it
        (``docs/guides/models.md``).
        ``packed_cache_bytes``: the maximum total size of these files; by default 20 GiB, or a
        quarter of the free disk space if that is less.
        ``prefix_cache``: whether prompts with a common prefix share its cached part.
        ``draft``: the source of drafts, several of which are verified in one step without changing
        the result (``docs/guides/speculation.md``): ``ngram``, ``off``, or a smaller model with the
        same vocabulary, given in the same way as ``model``.

        Raise a ``PotluckError`` on failure, if possible before any weight is read.
        """
        counts = {
            "stages": stages,
            "context": context_tokens,
            "cache": cache_tokens,
            "threads": num_threads,
        }
        for name, number in counts.items():
            if number is not None:
                require_number(name, number)
        # With a draft model, its own opening warns.
        problem = threads_problem(num_threads, own_usable_cores())
        if problem and not names_model(draft):
            _log.warning("%s", problem)
        with ExitStack() as on_failure:
            description = describe_model(model)
            context = _context_tokens(description, context_tokens)
            small = None
            if names_model(draft):
                # Opened before the model, so that its memory is counted when the model is planned.
                small = cls._open_small(draft, description, context, num_threads, isa)
                on_failure.callback(small.close)
            unit = find_unit(backend, isa=isa, allow_software=allow_software)
            plan = plan_load(
                description,
                num_stages=stages,
                context_tokens=context,
                cache_tokens=max(cache_tokens or 0, context),
                num_states=num_states_of(description.config, num_states, default=default_states),
                num_threads=num_threads,
                unit=unit,
                quantization=quantization,
                is_mapped=mmap,
                arithmetic=arithmetic,
            )
            # Loaded before the weights: it is small, and as likely to be missing or broken.
            tokenizer = load_tokenizer(description.files)
            chat_template = load_chat_template(description.files)
            cache = PackedCache(default_packed_folder(os.environ), packed_cache_bytes)
            loaded = prepare_stages(
                description,
                plan,
                room=partial(room_on, unit),
                cache=cache,
                on_progress=_reporting(on_progress),
                on_fetch=_reporting(on_progress, is_fetching=True),
                on_warm_up=_reporting(on_progress, is_warming_up=True),
            )
            engines = [stage.engine for stage in loaded.stages]
            plan = loaded.plan
            limits = SchedulerLimits(
                num_blocks=plan.size.num_blocks,
                num_states=plan.size.num_states,
                context_tokens=context,
                max_step_tokens=plan.size.max_step_tokens,
                max_step_sequences=sequences_in_step(plan.size.max_step_tokens),
                max_steps_in_flight=stages,
                has_prefix_cache=prefix_cache,
            )
            drafting = None
            drafts: DraftSource | None
            if small is None:
                drafts = draft_source(draft)
            else:
                drafting = DraftingThread(small._dispatcher)
                on_failure.callback(drafting.close)
                drafts = ModelDrafts(
                    drafting.start,
                    drafting.post,
                    lambda: dispatcher.drafts_ready(),
                    vocab_size=description.config.vocab_size,
                    context_tokens=small.context_tokens,
                )
            dispatcher = Dispatcher(limits, drafts=drafts)
            dispatcher.attach(
                lambda on_outcome: LocalPipeline(
                    engines, on_outcome, partial(open_vocabulary, description)
                ),
                limits,
            )
            on_failure.pop_all()
            return cls(
                description,
                plan,
                dispatcher,
                tokenizer=tokenizer,
                chat_template=chat_template,
                stages=loaded.stages,
                small=small,
                drafting=drafting,
            )

    @classmethod
    def _open_small(
        cls,
        draft: str,
        verified: ModelDescription,
        context_tokens: int,
        num_threads: int | None,
        isa: str | None,
    ) -> Model:
        """Open the draft model.

        Raise the errors of :meth:`open`, and ``ParameterError`` for a different vocabulary.
        """
        description = describe_model(draft)
        check_small(description, verified, draft_label=draft, label=verified.files.path.name)
        return cls.open(
            draft,
            context_tokens=min(context_tokens, description.config.max_context_tokens),
            num_threads=num_threads,
            isa=isa,
            draft=OFF,
        )

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def load_reports(self) -> tuple[LoadReport, ...]:
        """The result of loading each stage."""
        return tuple(stage.report for stage in self.stages)

    @property
    def expert_use(self) -> ExpertUse:
        """How many of the used matrices of mapped experts were in memory so far, on all stages."""
        return sum((stage.engine.expert_use for stage in self.stages), NO_EXPERTS)

    @property
    def context_tokens(self) -> int:
        """The maximum length of a sequence, including the prompt and new tokens."""
        return self.plan.size.context_tokens

    def close(self) -> None:
        """End active generations with an error, and free all resources. Idempotent."""
        self._dispatcher.close()
        if self._drafting is not None:
            self._drafting.close()
        if self.draft_model is not None:
            self.draft_model.close()
        self._grammars.close()

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        grammar: str | None = None,
        prediction: str | Sequence[int] = (),
        **sampling: Unpack[SamplingOptions],
    ) -> Generation:
        """Continue ``prompt``: text, in which control tokens are not recognized, or token ids.

        If ``max_tokens`` is None, generation may continue to the end of the context. A ``stop``
        string ends the text and is not part of it. ``ignore_eos`` continues after an end-of-text
        token (for benchmarks). The new text matches ``grammar``, created by ``potluck.grammars``,
        unless it ends for another reason, such as ``max_tokens``. ``prediction`` is the expected or
        a similar text: generation is faster where it is right, and the result is the same in any
        case. Raise ``PromptTooLongError`` and ``ParameterError``.
        """
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else _token_ids(prompt)
        return self._start(
            tokens,
            max_tokens=max_tokens,
            stop=stop,
            starts_text=False,
            stop_tokens=frozenset() if ignore_eos else frozenset(self.tokenizer.eos_token_ids),
            sampling=sampling,
            grammar=grammar,
            prediction=prediction,
        )

    def chat(
        self,
        messages: Iterable[ChatMessage],
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
        tools: Sequence[Tool] = (),
        tool_choice: str = "auto",
        parallel_tool_calls: bool = True,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        grammar: str | None = None,
        prediction: str | Sequence[int] = (),
        **sampling: Unpack[SamplingOptions],
    ) -> Generation:
        """Answer ``messages`` with the model's chat template.

        A final message of the assistant is continued, unless ``add_generation_prompt`` or
        ``continue_final_message`` say otherwise (see ``potluck.text.chat.chat_ending``); the
        generation only has the new text.

        With ``tools`` the model may call them: the result has ``tool_calls``, with ``text`` and
        ``reasoning`` separated. ``tool_choice`` is ``auto``, ``none``, ``required`` or the name of
        the tool to call. The arguments of required calls, and of calls of strict tools, conform to
        their schemas. ``grammar`` and ``prediction`` apply to the answer's text.

        Raise the errors of ``generate``, and ``ChatTemplateError`` if the model has no template or
        its template rejects the messages.
        """
        chat = tuple(messages)
        ending = chat_ending(
            chat,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        use = tool_use(tuple(tools), tool_choice, is_parallel=parallel_tool_calls)
        prompt = prompt_chat(
            self.tokenizer,
            self._chat_template,
            chat,
            ending=ending,
            tools=() if use.mode is ToolMode.NONE else use.tools,
        )
        output, visible = None, frozenset[str]()
        if use.tools:
            form = output_format(self._chat_template, self.tokenizer)
            grammar = form.grammar(use, prompt_end=prompt.turn, response=grammar)
            output = ChatOutput(form.parser(use, prompt_end=prompt.turn))
            visible = form.control_texts
        return self._start(
            prompt.tokens,
            max_tokens=max_tokens,
            stop=stop,
            starts_text=ending is ChatEnding.NEW_TURN,
            stop_tokens=frozenset(self.tokenizer.eos_token_ids),
            sampling=sampling,
            grammar=grammar,
            prediction=prediction,
            output=output,
            visible=visible,
        )

    def score(self, text: str | Sequence[int], *, top: int = 0) -> Scores:
        """Return the log-probability of each token of ``text``, given those before it.

        ``text`` is as in ``generate``; ``top`` (0 to 20) is the number of the most likely tokens to
        return for each position. The values are those of ``logprobs`` when the same tokens are
        generated. Waits for the result. Raise the errors of ``generate``.
        """
        tokens = self.tokenizer.encode(text) if isinstance(text, str) else _token_ids(text)
        self._check(tokens, None, ())
        if not RANGES["top_logprobs"].holds(top):
            raise ParameterError(
                "top", f"top is {top}", hint=f"use a number from 0 to {MAX_TOP_LOGPROBS}"
            )
        return score_tokens(self._dispatcher, self.tokenizer, tokens, top)

    def embed(
        self, inputs: Sequence[str | Sequence[int]], *, dimensions: int | None = None
    ) -> Embeddings:
        """Compute one vector for each of ``inputs``, which are texts, or token ids that are used
        unchanged.

        Pooling and normalization are those in the model's files, or else the normalized state of
        the last token. ``dimensions`` truncates the vectors, for models that were trained for it.
        Raise ``ParameterError``, also for a reranking model, and ``PromptTooLongError``.
        """
        config = self.description.vectors.embedding
        if config is None:
            raise ParameterError(
                "model",
                "this model does not support embeddings",
                hint="it is a reranking model: use rerank",
            )
        _require_list("inputs", inputs)
        vector_size = self.description.config.vector_size
        check_dimensions(dimensions, vector_size)
        prompts = [
            [*self.tokenizer.encode(each), *self.tokenizer.closing_tokens]
            if isinstance(each, str)
            else _token_ids(each)
            for each in inputs
        ]
        for tokens in prompts:
            self._check_prompt(tokens)
        return embed_tokens(self._dispatcher, prompts, config, dimensions, vector_size)

    def rerank(
        self, query: str, documents: Sequence[str], *, instruction: str | None = None
    ) -> tuple[DocumentScore, ...]:
        """Score how well each of ``documents`` answers ``query``, and return the most relevant
        first.

        ``instruction`` describes what is relevant, if the model's template supports it. Raise
        ``ParameterError`` if the model is not a reranking model, ``ChatTemplateError`` if it has no
        template for such prompts, and ``PromptTooLongError``.
        """
        config = self.description.vectors.rerank
        if config is None:
            raise ParameterError(
                "model",
                "this model is not a reranking model",
                hint="use a reranker, such as Qwen3-Reranker",
            )
        _require_list("documents", documents)
        check_labels(config, self.description.config.label_tokens, self.tokenizer)
        template = rerank_template(config, self._chat_template)
        prompts = [
            encode_pair(self.tokenizer, template, query, each, instruction=instruction)
            for each in documents
        ]
        for tokens in prompts:
            self._check_prompt(tokens)
        return rank_documents(self._dispatcher, prompts, config)

    def _start(
        self,
        tokens: Sequence[int],
        *,
        max_tokens: int | None,
        stop: Sequence[str],
        starts_text: bool,
        stop_tokens: frozenset[int],
        sampling: SamplingOptions,
        grammar: str | None,
        prediction: str | Sequence[int],
        output: ChatOutput | None = None,
        visible: frozenset[str] = frozenset(),
    ) -> Generation:
        started = time.perf_counter()
        self._check(tokens, max_tokens, stop)
        if grammar is not None:
            self._grammars.check_for(self.tokenizer, grammar)
        params = self._sampling_params(sampling)
        if isinstance(prediction, str):
            prediction = self.tokenizer.encode(prediction)
        else:
            prediction = _token_ids(prediction, "prediction")
        self._check_tokens("prediction", prediction)
        request = SequenceRequest(
            prompt_tokens=tuple(tokens),
            sampling=params,
            max_new_tokens=max_tokens,
            stop_tokens=stop_tokens,
            grammar=grammar,
            prediction=tuple(prediction),
        )
        detokenizer = StreamingDetokenizer(
            self.tokenizer, stop_strings=stop, starts_text=starts_text, visible=visible
        )
        return Generation(self._dispatcher, request, detokenizer, started=started, output=output)

    def _check(self, tokens: Sequence[int], max_tokens: int | None, stop: Sequence[str]) -> None:
        if not self.description.config.has_logits:
            raise ParameterError(
                "model",
                "the model is an embedding or reranking model and cannot generate text",
                hint="use embed or rerank",
            )
        self._check_prompt(tokens)
        if max_tokens is not None:
            require_number("max_tokens", max_tokens)
        _require_list("stop", stop)

    def _check_prompt(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise ParameterError("prompt", "the prompt is empty", hint="give at least one token")
        self._check_tokens("prompt", tokens)

    def _check_tokens(self, name: str, tokens: Sequence[int]) -> None:
        vocab_size = self.description.config.vocab_size
        outside = next((token for token in tokens if not 0 <= token < vocab_size), None)
        if outside is not None:
            raise ParameterError(
                name,
                f"token {shown(outside)} is outside the model's vocabulary of {vocab_size}",
                hint="the tokenizer may belong to another model",
            )

    def _sampling_params(self, options: SamplingOptions) -> SamplingParams:
        unknown = options.keys() - SamplingOptions.__annotations__.keys()
        if unknown:
            name = sorted(unknown)[0]
            known = ", ".join(sorted(SamplingOptions.__annotations__))
            raise ParameterError(name, f"unknown parameter {name}", hint=f"known: {known}")
        # Convert numbers of other libraries (NumPy's are floats too) to Python's own.
        given = {
            name: float(value) if isinstance(value, float) else value
            for name, value in options.items()
        }
        values = merged_sampling(self.description.sampling_defaults, given)
        values["logit_bias"] = tuple((options.get("logit_bias") or {}).items())
        if values.get("seed") is None:
            values["seed"] = secrets.randbits(63)
        params = SamplingParams(**values)  # type: ignore[arg-type]
        validate_sampling(params, self.description.config.vocab_size)
        return replace(params, logit_bias=tuple(sorted(params.logit_bias)))


def _require_list(name: str, texts: object) -> None:
    if isinstance(texts, str):
        raise ParameterError(name, f"{name} is a single text", hint="give a list of texts")


def _token_ids(tokens: Sequence[int], name: str = "prompt") -> list[int]:
    """Convert token ids, such as NumPy's, to Python's own integers."""
    try:
        return [operator.index(token) for token in tokens]
    except TypeError as error:
        raise ParameterError(
            name, f"the {name} is neither text nor a sequence of token ids", hint="give integers"
        ) from error


def _reporting(
    callback: Callable[[LoadProgress], None] | None,
    *,
    is_fetching: bool = False,
    is_warming_up: bool = False,
) -> Callable[[int, int], None] | None:
    if callback is None:
        return None
    return lambda done_bytes, total_bytes: callback(
        LoadProgress(
            done_bytes=done_bytes,
            total_bytes=total_bytes,
            is_fetching=is_fetching,
            is_warming_up=is_warming_up,
        )
    )


def _context_tokens(description: ModelDescription, context_tokens: int | None) -> int:
    most = description.config.max_context_tokens
    if context_tokens is None:
        return min(most, DEFAULT_CONTEXT_TOKENS)
    if not 2 <= context_tokens <= most:
        raise ParameterError(
            "context",
            f"a context of {context_tokens} tokens is not possible",
            hint=f"this model supports 2 to {most}",
        )
    return context_tokens
