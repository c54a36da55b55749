//! `/v1/completions/render`, `/tokenize` and `/detokenize`, as vLLM has them: the symbols that a completion feeds to its model, and the
//! text of symbols. Fields call symbols tokens. A text has the symbols that the same prompt of `/v1/completions` has.

use crate::{
    call::ClientContext,
    completion_request::{CompletionRequest, Names, Path, Prompt, Surface, parse_json},
    grpc::convert::generate_job,
    http::{
        completions::no_chat,
        error::ApiError,
        state::{ApiState, JSON},
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
use serde_json::{Map, Value, json};
use std::sync::Arc;
use weir_engine::constraint::Constraint;
use weir_kernels::error::{Error, Result, quoted};
use weir_models::contract::Card;
use weir_proto::v1;

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

#[derive(Serialize)]
struct Tokenized {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
    /// The first character of the prompt that each token stands for, and the one after the last. The ranges follow each other. A
    /// character of several bytes belongs to its last byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    offsets: Option<Vec<[usize; 2]>>,
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
    sampling_params: &'a Value,
    model: &'a str,
    stream: bool,
    priority: i32,
}

pub(super) async fn tokenize(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Response {
    let answer = async {
        let body = state.read_body(&client, request, JSON).await?;
        let tenant = Arc::clone(&body.tenant);
        let request: TokenizeRequest = state.parse(body, |json| parse_json(json, "the body")).await?;
        let model = request.model.clone();
        if request.messages.is_some() {
            let engines = state.monitor.engines();
            let lease = engines.find_able("model", model.as_deref(), continues_text)?;
            return Err(no_chat(Some(&*lease)));
        }
        let bytes = request.prompt.as_ref().map_or(0, String::len);
        let limit = state.max_body_bytes;
        let work = move |card: &Card, memory: &RequestMemory| request.answer(card, limit, memory);
        respond(&state, &client, &tenant, model, bytes, &Names::default(), work).await
    };
    client.with_request_id(answer.await.into_response())
}

pub(super) async fn detokenize(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Response {
    let answer = async {
        let body = state.read_body(&client, request, JSON).await?;
        let tenant = Arc::clone(&body.tenant);
        let request: DetokenizeRequest = state.parse(body, |json| parse_json(json, "the body")).await?;
        let DetokenizeRequest { model, tokens } = request;
        let bytes = tokens.len() * size_of::<u32>();
        let work = move |card: &Card, memory: &RequestMemory| detokenized(&tokens, card, memory);
        respond(&state, &client, &tenant, model, bytes, &Names::default(), work).await
    };
    client.with_request_id(answer.await.into_response())
}

pub(super) async fn render(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Response {
    let answer = async {
        let body = state.read_body(&client, request, JSON).await?;
        let tenant = Arc::clone(&body.tenant);
        let request = state.parse(body, |json| CompletionRequest::parse(json, Path::Completions)).await?;
        let names = request.names(Surface::Completions);
        let model = request.model.clone();
        let bytes = request.prompt.list().unwrap_or_default().iter().map(|prompt| match prompt {
            Prompt::Text(text) => text.len(),
            Prompt::Ids(ids) => ids.len() * size_of::<u32>(),
        });
        let bytes = bytes.sum();
        let id = Arc::clone(&client.request_id);
        let work = move |card: &Card, memory: &RequestMemory| {
            memory.add(bytes * ID_BYTES)?;
            rendered(request, card, &id)
        };
        respond(&state, &client, &tenant, model, bytes, &names, work).await
    };
    client.with_request_id(answer.await.into_response())
}

/// Responds with the JSON that `work` makes of the card of a request's model, as a call that asks for this model. `work` adds what it
/// allocates to the memory of the request, whose text has `bytes` bytes.
async fn respond(
    state: &ApiState,
    client: &ClientContext,
    tenant: &Arc<str>,
    model: Option<String>,
    bytes: usize,
    names: &Names,
    work: impl FnOnce(&Card, &RequestMemory) -> Result<Vec<u8>> + Send + 'static,
) -> Result<Response, ApiError> {
    let jobs = &state.calls.jobs;
    let call = state.calls.begin("/weir.v1.Models/GetModel", client, bytes, async |_, memory| {
        let lease: Lease = jobs.engines.find_able("model", model.as_deref(), continues_text)?;
        if !continues_text(&lease) {
            let card = lease.card();
            return Err(Error::only_summarizes(&card.name, "continues a prompt", &card.shape));
        }
        let cost = lease.card().vocabulary.work(bytes);
        jobs.workers.run(tenant, cost, move || work(lease.card(), &memory)).await.flatten()
    });
    let json = call.await.map(CallResponse::into_complete).map_err(|error| ApiError::named(error, names))?;
    Ok(([(CONTENT_TYPE, JSON)], json).into_response())
}

fn to_json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::Internal(format!("JSON: {error}")))
}

impl TokenizeRequest {
    fn answer(self, card: &Card, limit: usize, memory: &RequestMemory) -> Result<Vec<u8>> {
        let text = self.prompt.ok_or_else(|| Error::bad_option("prompt", "nothing", "a text"))?;
        let strings = self.return_token_strs.unwrap_or_default();
        let offsets = self.return_offsets.unwrap_or_default();
        let of_symbol = ID_BYTES + usize::from(strings) * STRING_BYTES + usize::from(offsets) * OFFSET_BYTES;
        // few texts have more symbols than bytes
        memory.add(text.len() * of_symbol)?;
        let vocabulary = &card.vocabulary;
        let marks = if self.add_special_tokens.unwrap_or(true) { 0 } else { vocabulary.start_marks().count() };
        let (mut tokens, places) = if offsets {
            let (tokens, placed) = vocabulary.encode_placed("prompt", &text, limit)?;
            let end = text.chars().count();
            let start = |symbol| if symbol < tokens.len() { placed.character_of(symbol) } else { end };
            let places = (marks..tokens.len()).map(|symbol| [start(symbol), start(symbol + 1)]).collect();
            (tokens, Some(places))
        } else {
            (vocabulary.encode("prompt", &text, limit)?, None)
        };
        tokens.drain(..marks);
        let token_strs = strings.then(|| tokens.iter().map(|&id| vocabulary.symbol(id)).collect());
        to_json(&Tokenized {
            count: tokens.len(),
            max_model_len: card.max_symbols,
            tokens,
            token_strs,
            offsets: places,
        })
    }
}

fn detokenized(tokens: &[u32], card: &Card, memory: &RequestMemory) -> Result<Vec<u8>> {
    let vocabulary = &card.vocabulary;
    vocabulary.check_ids("tokens", tokens)?;
    // the text, and the text in JSON
    memory.add(2 * tokens.len() * vocabulary.longest_symbol())?;
    let marks: Vec<_> = vocabulary.start_marks().collect();
    let own = tokens.strip_prefix(&marks[..]).unwrap_or(tokens);
    // The tokens are a whole text, which `Vocabulary::decode` would continue.
    let text = vocabulary.tokenizer().map_or_else(|| vocabulary.decode(own), |tokenizer| tokenizer.decode(own));
    to_json(&json!({ "prompt": text }))
}

fn rendered(mut request: CompletionRequest, card: &Card, request_id: &str) -> Result<Vec<u8>> {
    request.adapt_to(card);
    // Only a model with a start mark continues an empty text.
    if card.first_logits.is_none() {
        request.prompt.list()?;
    }
    // Also checks their number.
    let choices = request.generate_requests()?.len();
    let biases = request.sampling(None, None).logit_bias.into_iter().filter_map(|bias| match bias.symbol {
        Some(v1::logit_bias::Symbol::Id(id)) => Some((id.to_string(), json!(bias.bias))),
        _ => None,
    });
    let biases: Map<_, _> = biases.collect();
    let params = json!({
        "n": request.n.take().unwrap_or(1),
        "max_tokens": request.max_tokens,
        "min_tokens": request.min_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "seed": request.seed.as_ref().map(|seed| seed.0),
        "ignore_eos": request.ignore_eos,
        "stop": Some(&request.stop.0).filter(|stop| !stop.is_empty()),
        "include_stop_str_in_output": request.include_stop_str_in_output,
        "logprobs": request.logprobs,
        "logit_bias": Some(biases).filter(|biases| !biases.is_empty()),
        "echo": request.echo,
        "boundaries": request.boundaries,
        "boundary_mode": request.boundary_mode,
        "max_segments": request.max_segments,
    });
    // One request for each prompt.
    request.best_of = None;
    let Value::Object(params) = params else { return Err(Error::Internal("sampling_params is no object".into())) };
    let mut stated: Map<_, _> = params.into_iter().filter(|(_, value)| !value.is_null()).collect();
    // Every prompt has the same form.
    if let Some(constraint) = request.generate_requests()?.next().and_then(|message| message.constraint) {
        if let Some(ends) = constraint.end_when_complete {
            stated.insert("end_when_complete".into(), ends.into());
        }
        stated.insert("structured_outputs".into(), structured_outputs(constraint)?);
    }
    let sampling_params = Value::Object(stated);
    let mut prompts = Vec::with_capacity(choices);
    for (index, mut message) in request.generate_requests()?.enumerate() {
        // the form of the answer changes no token of the prompt
        message.constraint = None;
        let compile = |_: &Constraint| Err(Error::Internal("a form is compiled for no request".into()));
        let (job, _) = generate_job(message, card, compile)?;
        job.validate(card)?;
        let mut token_ids = job.prompt;
        token_ids.extend(job.resumed);
        prompts.push(Rendered {
            request_id: format!("cmpl-{request_id}-{index}"),
            token_ids,
            sampling_params: &sampling_params,
            model: &card.name,
            stream: request.wants_stream(),
            priority: request.priority.unwrap_or_default(),
        });
    }
    to_json(&prompts)
}

/// Returns a form under the names of vLLM's `structured_outputs`.
fn structured_outputs(constraint: v1::Constraint) -> Result<Value> {
    use v1::constraint::Form;
    Ok(match constraint.form {
        Some(Form::Regex(regex)) => json!({ "regex": regex }),
        Some(Form::Choice(choice)) => json!({ "choice": choice.texts }),
        Some(Form::JsonSchema(schema)) => {
            let schema: Value = serde_json::from_str(&schema)
                .map_err(|error| Error::bad_option("constraint.json_schema", quoted(&schema), error.to_string()))?;
            json!({ "json": schema })
        }
        Some(Form::JsonObject(is_object)) => json!({ "json_object": is_object }),
        Some(Form::Grammar(grammar)) => json!({ "grammar": grammar }),
        None => json!({}),
    })
}
