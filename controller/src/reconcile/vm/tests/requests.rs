//! The requests that the scenarios write, on record for a real API server (`api::rules`).
//!
//! Each line of `tests/fixtures/controller-requests.jsonl` is a request with the object that it changes:
//! enough of them that every field that a scenario writes is in one, and every word of a condition.
//!
//! Invariant: a scenario writes nothing that no request on record has. Simulated schedules are left out:
//! they write what the scenarios do.
//! Failure: the scenario that wrote it, and what it wrote; `UPDATE_REQUESTS=1` adds the request.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use http::Method;
use http::request::Parts;
use serde_json::{Value, json};
use uuid::Uuid;

use super::api::split;

const RECORD: &str = "../tests/fixtures/controller-requests.jsonl";
/// What the API server gives every object.
const GIVEN: [&str; 7] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
];
/// What a request may state of it.
const PRECONDITIONS: [&str; 2] = ["uid", "resourceVersion"];

/// Whether requests are added to the record.
static IS_EXTENDED: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os("UPDATE_REQUESTS").is_some());
/// The fields and words on record.
static RECORDED: LazyLock<Mutex<BTreeSet<String>>> = LazyLock::new(|| {
    let features = requests().iter().flat_map(features).collect();
    Mutex::new(features)
});

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORD)
}

/// The requests on record.
fn requests() -> Vec<Value> {
    let text = std::fs::read_to_string(file()).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// An object as it is before a request, where that is needed.
pub(super) fn before(object: Option<&Value>) -> Option<Value> {
    object.filter(|_| *IS_EXTENDED).cloned()
}

/// Looks a request up that was carried out. `before` is the object that it changed.
pub(super) fn look_up(parts: &Parts, before: Option<&Value>, body: &Value) {
    if ![Method::POST, Method::PATCH].contains(&parts.method) {
        return;
    }
    let request = request(parts, before, body);
    let written = features(&request);
    let mut recorded = RECORDED.lock().unwrap_or_else(PoisonError::into_inner);
    if written.is_subset(&recorded) {
        return;
    }
    if !*IS_EXTENDED {
        let lacks: Vec<_> = written.difference(&recorded).cloned().collect();
        drop(recorded);
        panic!(
            "no request in {RECORD} has {lacks:#?}: run UPDATE_REQUESTS=1 cargo test -p \
             vmlet-controller --lib reconcile::vm, then cargo xtask test api::rules"
        );
    }
    let mut file = OpenOptions::new().append(true).open(file()).unwrap();
    writeln!(file, "{request}").unwrap();
    recorded.extend(written);
}

fn request(parts: &Parts, before: Option<&Value>, body: &Value) -> Value {
    let form = parts.headers.get("content-type");
    let form = form.map_or("", |form| form.to_str().unwrap());
    let mut options: Vec<_> = parts.uri.query().unwrap_or_default().split('&').collect();
    options.retain(|option| !option.is_empty());
    json!({
        "verb": parts.method.as_str(),
        "path": parts.uri.path().trim_start_matches('/'),
        "query": options.join("&"),
        "form": form,
        "before": before.map(|object| without_given(object, form)),
        "body": without_preconditions(body),
    })
}

/// An object as it can be made again. Only a JSON patch looks at its status.
fn without_given(object: &Value, form: &str) -> Value {
    let mut object = object.clone();
    remove(&mut object["metadata"], &GIVEN);
    if !form.contains("json-patch") {
        remove(&mut object, &["status"]);
    }
    object
}

fn without_preconditions(body: &Value) -> Value {
    let mut body = body.clone();
    if let Value::Array(operations) = &mut body {
        operations.retain(|one| !is_precondition(one));
    } else if body["metadata"].is_object() {
        remove(&mut body["metadata"], &PRECONDITIONS);
    }
    body
}

fn remove(object: &mut Value, fields: &[&str]) {
    if let Value::Object(all) = object {
        all.retain(|name, _| !fields.contains(&name.as_str()));
    }
}

/// Whether an operation of a JSON patch tests what the API server gives every object.
fn is_precondition(operation: &Value) -> bool {
    let path = operation["path"].as_str().unwrap_or_default();
    let field = path.strip_prefix("/metadata/");
    field.is_some_and(|field| PRECONDITIONS.contains(&field))
}

/// The fields and the words that a request writes.
fn features(request: &Value) -> BTreeSet<String> {
    let text = |field: &str| request[field].as_str().unwrap_or_default();
    let (collection, _, sub) = split(text("path"));
    let plural = collection.rsplit('/').next().unwrap_or_default();
    let start = format!("{} {plural}/{sub} {}", text("verb"), text("form"));
    let mut all = BTreeSet::new();
    collect(&start, &request["body"], &mut all);
    all
}

fn collect(path: &str, value: &Value, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let is_uid = Uuid::parse_str(name).is_ok();
                let name = if is_uid { "UID" } else { name };
                collect(&format!("{path} {name}"), value, all);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                collect(&format!("{path} []"), item, all);
            }
        }
        Value::String(text) if is_word(text) => {
            all.insert(format!("{path}={text}"));
        }
        _ => {
            all.insert(path.to_owned());
        }
    }
}

/// Whether a text is one of a fixed set, as reasons and phases are.
fn is_word(text: &str) -> bool {
    let is_capital = text.starts_with(|first: char| first.is_ascii_uppercase());
    is_capital && text.len() <= 60 && text.bytes().all(|byte| byte.is_ascii_alphabetic())
}

#[test]
fn every_form_of_a_request_is_on_record() {
    let all = requests();
    let form = |request: &Value| {
        let form = &request["form"];
        let text = [&request["verb"], form].map(|part| part.as_str().unwrap().to_owned());
        text.join(" ")
    };
    let forms: BTreeSet<_> = all.iter().map(form).collect();
    let expected = [
        "PATCH application/apply-patch+yaml",
        "PATCH application/json-patch+json",
        "PATCH application/merge-patch+json",
        "POST application/json",
    ];
    assert_eq!(forms.iter().collect::<Vec<_>>(), expected);
    let mut changes = all.iter().filter(|one| one["verb"] == "PATCH");
    assert!(changes.all(|change| change["before"].is_object()));
}
