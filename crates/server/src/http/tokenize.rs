//! `/v1/completions/render`, `/tokenize` and `/detokenize`, as vLLM has them: the symbols that a completion feeds to its model, and the
//! text of symbols. Fields call symbols tokens. A text has the symbols that the same prompt of `/v1/completions` has: for a model that
//! summarizes, those of a document.

use crate::{
    call::ClientContext,
    completion_request::{CompletionRequest, Names, Path, Prompt, Surface, parse_json},
    grpc::convert::{self, generate_job},
    http::{
        completions::no_chat,
        error::ApiError,
        state::{ApiState, JSON},
        summaries::summarizer,
    },
    middleware::{CallResponse, limits::RequestMemory},
    registry::{Lease, continues_text},
};
use axum::{
    Extension,
    extract::{Request, State},
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::{Value, json};
use std::sync::Arc;
use weir_engine::{constraint::Constraint, summary::LongDocuments};
use weir_kernels::error::{Error, Result};
use weir_models::{
    contract::{Card, DocumentLimits, covers_text, no_text},
    text::{LimitStatus, PlacedText, StreamTokenizer, TokenSpan},
};
use weir_proto::v1::summarize_request::Part;

/// Bytes of memory of a symbol's id, and of the id in JSON.
const ID_BYTES: usize = 16;

/// Bytes of memory of a symbol's place, and of the place in JSON.
const OFFSET_BYTES: usize = 32;

/// Bytes of memory of a symbol's string, without its text.
const STRING_BYTES: usize = 32;

/// The body of a request to `/tokenize`. As in vLLM, further fields have no effect.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct TokenizeRequest {
    model: Option<String>,
    prompt: Option<String>,
    /// A chat, which no model here has a template for.
    messages: Option<IgnoredAny>,
    add_special_tokens: Option<bool>,
    return_token_strs: Option<bool>,
    return_offsets: Option<bool>,
}

/// The first character of the prompt that each token stands for, and the one after the last. The ranges follow each other. A
/// character of several bytes belongs to its last byte.
type Offsets = Vec<[usize; 2]>;

#[derive(Serialize)]
struct Tokenized {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offsets: Option<Offsets>,
}

/// The body of a request to `/detokenize`.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<u32>,
}

/// A prompt that `/v1/completions/render` returns: a request to vLLM's `/inference/v1/generate`.
#[derive(Serialize)]
struct Rendered<'a> {
    request_id: String,
    token_ids: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_offsets: Option<Offsets>,
    sampling_params: &'a Value,
    model: &'a str,
    stream: bool,
    priority: i32,
}

pub(super) async fn tokenize(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = state.read_body(&client, request, JSON).await?;
    let request: TokenizeRequest = state.parse(body, |json| parse_json(json, "the body")).await?;
    let model = request.model.clone();
    if request.messages.is_some() {
        let engines = state.monitor.engines();
        let lease = engines.find_able("model", model.as_deref(), continues_text)?;
        return Err(no_chat(Some(&*lease)));
    }
    let bytes = request.prompt.as_ref().map_or(0, String::len);
    let limit = state.max_body_bytes;
    let work = move |engine: &Lease, memory: &RequestMemory| request.answer(engine, limit, memory);
    respond(&state, &client, "/weir.v1.Tokenization/Tokenize", model, bytes, &Names::default(), work).await
}

pub(super) async fn detokenize(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = state.read_body(&client, request, JSON).await?;
    let request: DetokenizeRequest = state.parse(body, |json| parse_json(json, "the body")).await?;
    let DetokenizeRequest { model, tokens } = request;
    let bytes = tokens.len() * size_of::<u32>();
    let work = move |engine: &Lease, memory: &RequestMemory| detokenized(&tokens, engine.card(), memory);
    respond(&state, &client, "/weir.v1.Tokenization/Detokenize", model, bytes, &Names::default(), work).await
}

pub(super) async fn render(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = state.read_body(&client, request, JSON).await?;
    let request = state.parse(body, |json| CompletionRequest::parse(json, Path::Completions)).await?;
    let engines = state.monitor.engines();
    let summarizes = summarizer(engines, request.model.as_deref())?.is_some();
    let names = request.names(if summarizes { Surface::SummarizedPrompts } else { Surface::Completions });
    let model = request.model.clone();
    let bytes = request.prompt.list().unwrap_or_default().iter().map(|prompt| match prompt {
        Prompt::Text(text) => text.len(),
        Prompt::Ids(ids) => ids.len() * size_of::<u32>(),
    });
    let bytes = bytes.sum();
    let id = Arc::clone(&client.request_id);
    let limit = state.max_body_bytes;
    let of_symbol = ID_BYTES + usize::from(request.wants_offsets()) * OFFSET_BYTES;
    let work = move |engine: &Lease, memory: &RequestMemory| {
        memory.add(bytes * of_symbol)?;
        rendered(request, engine, limit, &id)
    };
    respond(&state, &client, "/weir.v1.Tokenization/Render", model, bytes, &names, work).await
}

/// Responds with the JSON that `work` makes for a request's model, as a call of the method at `path`. `work` adds what it allocates to
/// the memory of the request, whose text has `bytes` bytes.
async fn respond(
    state: &ApiState,
    client: &ClientContext,
    path: &'static str,
    model: Option<String>,
    bytes: usize,
    names: &Names,
    work: impl FnOnce(&Lease, &RequestMemory) -> Result<Vec<u8>> + Send + 'static,
) -> Result<Response, ApiError> {
    let jobs = &state.calls.jobs;
    let call = state.calls.begin(path, client, bytes, async |call, memory| {
        let model = model.as_deref();
        let lease = match summarizer(&jobs.engines, model)? {
            Some(lease) => lease,
            None => jobs.engines.find_able("model", model, continues_text)?,
        };
        let cost = lease.card().vocabulary.work(bytes);
        jobs.workers.run(&call.tenant(), cost, move || work(&lease, &memory)).await.flatten()
    });
    let json = call.await.map(CallResponse::into_complete).map_err(|error| ApiError::named(error, names))?;
    Ok(([(CONTENT_TYPE, JSON)], json).into_response())
}

fn to_json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::Internal(format!("JSON: {error}")))
}

impl TokenizeRequest {
    fn answer(self, engine: &Lease, limit: usize, memory: &RequestMemory) -> Result<Vec<u8>> {
        let card = engine.card();
        let text = self.prompt.ok_or_else(|| Error::bad_option("prompt", "nothing", "a text"))?;
        let strings = self.return_token_strs.unwrap_or_default();
        let offsets = self.return_offsets.unwrap_or_default();
        let of_symbol = ID_BYTES + usize::from(strings) * STRING_BYTES + usize::from(offsets) * OFFSET_BYTES;
        // few texts have more symbols than bytes
        memory.add(text.len() * of_symbol)?;
        let has_marks = self.add_special_tokens.unwrap_or(true);
        let (tokens, offsets) = placed_tokens(engine, &text, limit, has_marks, offsets)?;
        let token_strs = strings.then(|| tokens.iter().map(|&id| card.vocabulary.symbol(id)).collect());
        to_json(&Tokenized {
            count: tokens.len(),
            // A document has an end mark as well.
            max_model_len: engine.document_limits().map_or(card.max_symbols, |limits| limits.tokens.saturating_sub(1)),
            tokens,
            token_strs,
            offsets,
        })
    }
}

/// Returns the tokens of a text of at most `limit` bytes, as [`TokenizeRequest`] has them, and if `wants_offsets` their places.
fn placed_tokens(
    engine: &Lease,
    text: &str,
    limit: usize,
    has_marks: bool,
    wants_offsets: bool,
) -> Result<(Vec<u32>, Option<Offsets>)> {
    let vocabulary = &engine.card().vocabulary;
    let (mut tokens, placed, marks) = match engine.document_limits() {
        Some(limits) => {
            let tokens = document_tokens(engine, limits, text, limit, has_marks)?;
            let spans = tokens.iter().map(|token| (token.start as usize, token.end as usize));
            let placed = wants_offsets.then(|| PlacedText::of_spans(text, spans));
            (tokens.into_iter().map(|token| token.id).collect(), placed, 0)
        }
        None => {
            let marks = if has_marks { 0 } else { vocabulary.start_marks().count() };
            let (tokens, placed) = vocabulary.encode_placed("prompt", text, limit)?;
            (tokens, wants_offsets.then_some(placed), marks)
        }
    };
    let offsets = placed.map(|placed| {
        let end = text.chars().count();
        let start = |symbol| if symbol < tokens.len() { placed.character_of(symbol) } else { end };
        (marks..tokens.len()).map(|symbol| [start(symbol), start(symbol + 1)]).collect()
    });
    tokens.drain(..marks);
    Ok((tokens, offsets))
}

/// Returns the tokens of a document; without the model's prefix and the marks around it unless `has_marks`.
fn document_tokens(
    engine: &Lease,
    limits: &DocumentLimits,
    text: &str,
    limit: usize,
    has_marks: bool,
) -> Result<Vec<TokenSpan>> {
    let vocabulary = &engine.card().vocabulary;
    let prefix = if has_marks { &*limits.generation.prefix } else { "" };
    let tokenizer = StreamTokenizer::new(Arc::clone(vocabulary), "prompt", limit).with_prefix(prefix);
    let (mut tokens, status) = limits.encode(tokenizer, text)?;
    if status == LimitStatus::Exceeded {
        return Err(Error::LongerThan { field: "prompt", limit, unit: "tokens", why: None });
    }
    if !has_marks {
        tokens.drain(..vocabulary.tokenizer().map_or(0, |tokenizer| tokenizer.leading().len()));
        // A mark that the text spells out stays.
        tokens.pop_if(|last| last.id == limits.marks.end && last.start == last.end);
    }
    Ok(tokens)
}

fn detokenized(tokens: &[u32], card: &Card, memory: &RequestMemory) -> Result<Vec<u8>> {
    let vocabulary = &card.vocabulary;
    vocabulary.check_ids("tokens", tokens)?;
    // the text, and the text in JSON
    memory.add(2 * tokens.len() * vocabulary.longest_symbol())?;
    // `Vocabulary::decode` would continue another text, and leave out special tokens.
    let text =
        vocabulary.tokenizer().map_or_else(|| vocabulary.decode(tokens), |tokenizer| tokenizer.decode_all(tokens));
    to_json(&json!({ "prompt": text }))
}

fn rendered(mut request: CompletionRequest, engine: &Lease, limit: usize, request_id: &str) -> Result<Vec<u8>> {
    let card = engine.card();
    let all = match engine.document_limits() {
        Some(limits) => {
            request.drop_biases_without_symbol(card.vocabulary.len());
            document_prompts(&request, engine, limits)?
        }
        None => {
            request.adapt_to(card);
            text_prompts(&mut request, card)?
        }
    };
    let sampling_params = request.sampling_params()?;
    let given = request.prompt.list().unwrap_or_default();
    let prompts = all.into_iter().enumerate().map(|(index, token_ids)| {
        let token_offsets = match given.get(index) {
            Some(Prompt::Text(text)) if request.wants_offsets() => {
                let (tokens, offsets) = placed_tokens(engine, text, limit, true, true)?;
                if tokens != token_ids {
                    let bound = "false with resume_text or a document that is cut";
                    return Err(Error::bad_option("return_token_offsets", "true", bound));
                }
                offsets
            }
            _ => None,
        };
        Ok(Rendered {
            request_id: format!("cmpl-{request_id}-{index}"),
            token_ids,
            token_offsets,
            sampling_params: &sampling_params,
            model: &card.name,
            stream: request.wants_stream(),
            priority: request.priority.unwrap_or_default(),
        })
    });
    to_json(&prompts.collect::<Result<Vec<_>>>()?)
}

/// Returns the symbols of each prompt that a model continues.
fn text_prompts(request: &mut CompletionRequest, card: &Card) -> Result<Vec<Vec<u32>>> {
    // Only a model with a start mark continues an empty text.
    if card.first_logits.is_none() {
        request.prompt.list()?;
    }
    // Checks the number of choices. Below, each prompt has one.
    drop(request.generate_requests()?);
    let choices = request.n.take();
    request.best_of = None;
    let prompts = request.generate_requests()?.map(|mut message| {
        // the form of the answer changes no token of the prompt
        message.constraint = None;
        let compile = |_: &Constraint| Err(Error::Internal("a form is compiled for no request".into()));
        let (job, _) = generate_job(message, card, compile)?;
        job.validate(card)?;
        let mut token_ids = job.prompt;
        token_ids.extend(job.resumed);
        Ok(token_ids)
    });
    let prompts = prompts.collect::<Result<_>>()?;
    request.n = choices;
    Ok(prompts)
}

/// Returns the tokens of each prompt that a model summarizes.
fn document_prompts(request: &CompletionRequest, engine: &Lease, limits: &DocumentLimits) -> Result<Vec<Vec<u32>>> {
    let card = engine.card();
    let calls = request.summarize_requests(&card.name, limits.marks.end, limits.generation.rules)?;
    let prompts = request.prompt.list()?.iter().zip(calls).map(|(prompt, call)| {
        let Some(Part::Options(options)) = call.into_iter().next().and_then(|message| message.part) else {
            return Err(Error::Internal("a summary without options".into()));
        };
        convert::summary_options(&options, card)?.plan(card, limits, engine.limits().rows)?;
        let long_documents = convert::long_documents(&options)?;
        if long_documents == LongDocuments::Chunk {
            return Err(Error::bad_option("long_documents", "chunk", "refuse or cut (each part is a request)"));
        }
        let too_long =
            |limit| Error::LongerThan { field: "prompt", limit, unit: "tokens", why: Some("unless it is cut") };
        match prompt {
            Prompt::Text(text) => {
                let is_cut = long_documents == LongDocuments::Cut;
                let tokenizer = limits.tokenizer(Arc::clone(&card.vocabulary), "prompt").with_truncation(is_cut);
                let (tokens, status) = limits.encode(tokenizer, text)?;
                if status == LimitStatus::Exceeded && !is_cut {
                    return Err(too_long(limits.tokens.saturating_sub(1)));
                }
                if !covers_text(&tokens[..tokens.len().saturating_sub(1)]) {
                    return Err(no_text("prompt"));
                }
                Ok(tokens.into_iter().map(|token| token.id).collect())
            }
            Prompt::Ids(ids) => {
                card.vocabulary.check_ids("prompt", ids)?;
                let mut token_ids = ids.clone();
                if ids.last() != Some(&limits.marks.end) {
                    token_ids.push(limits.marks.end);
                }
                if token_ids.len() > limits.tokens {
                    return Err(too_long(limits.tokens));
                }
                Ok(token_ids)
            }
        }
    });
    prompts.collect()
}
