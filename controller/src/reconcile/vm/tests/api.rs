//! An API server in memory: create, get, patch and delete with their rules. Every write is
//! recorded.
//!
//! Invariant: a resource version never comes twice; an object with finalizers stays until they are
//! gone.
//! Failure: refusals are `Status` objects with the real codes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::{apply, bounds, requests};

/// Path of a collection and name of an object.
pub(super) type Place = (String, String);

/// The server's state.
#[derive(Clone, Default)]
pub(super) struct State {
    pub(super) objects: BTreeMap<Place, Value>,
    applied: BTreeMap<(Place, String), Value>,
    version: u64,
    /// Writes that were let in, as `PATCH pods/vm` or `PATCH virtualmachines/vm/status`.
    pub(super) writes: Vec<String>,
    /// The bodies of those writes.
    pub(super) bodies: Vec<Value>,
    /// So many more are let in, and then the controller is killed; `None`: it is not.
    pub(super) writes_left: Option<usize>,
    /// Requests to refuse: method and part of the path (its end, before `$`), code, how often.
    pub(super) refusals: Vec<(Method, String, u16, usize)>,
    /// The quota of pods.
    pub(super) most_pods: Option<usize>,
    /// Namespaces that are being deleted: nothing can be created there.
    pub(super) ending: Vec<String>,
    /// Collections that the API server does not serve.
    pub(super) unknown: Vec<String>,
    /// What watches show, in order; `None`: no watch follows.
    pub(super) log: Option<Vec<Shown>>,
    /// The time of the server; `None`: it does not advance.
    pub(super) clock: Option<Arc<dyn Fn() -> String + Send + Sync>>,
}

/// One event of a watch.
#[derive(Clone)]
pub(super) struct Shown {
    pub(super) place: Place,
    /// The object, or what it was before it was removed.
    pub(super) object: Value,
    pub(super) is_removed: bool,
}

/// Shared with the client.
pub(super) type Server = Arc<Mutex<State>>;

pub(super) fn client(server: &Server) -> Client {
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let (code, value) = server.lock().unwrap().answer(&parts, &body);
            let response = Response::builder().status(code);
            let text = serde_json::to_vec(&value).unwrap();
            Ok::<_, std::convert::Infallible>(response.body(Body::from(text)).unwrap())
        }
    });
    Client::new(service, "default")
}

pub(super) type Answer = (StatusCode, Value);

pub(super) fn refuse(code: u16, reason: &str, message: &str) -> Answer {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    (StatusCode::from_u16(code).unwrap(), status)
}

impl State {
    pub(super) fn answer(&mut self, parts: &http::request::Parts, body: &[u8]) -> Answer {
        let path = parts.uri.path().trim_start_matches('/').to_owned();
        if path.starts_with("apis/") && path.split('/').count() == 3 {
            return self.kinds(&path);
        }
        let (collection, name, sub) = split(&path);
        let what = [collection.rsplit('/').next().unwrap(), &name, &sub];
        let what: Vec<_> = what.into_iter().filter(|p| !p.is_empty()).collect();
        let what = what.join("/");
        if let Some(code) = self.refusal(&parts.method, &what) {
            return refuse(code, "Refused", "refused by the test");
        }
        if self.unknown.iter().any(|u| collection.contains(u.as_str())) {
            // As the real one: the path itself is unknown, and the answer is no status.
            return (StatusCode::NOT_FOUND, json!("404 page not found"));
        }
        let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let is_write = parts.method != Method::GET && !query.contains("dryRun=All");
        if is_write && self.writes_left == Some(0) {
            return refuse(500, "Killed", "the controller is killed");
        }
        let kind = parts.headers.get("content-type");
        let kind = kind.map_or("", |k| k.to_str().unwrap()).to_owned();
        let place = (collection.clone(), name.clone());
        let before = requests::before(self.objects.get(&place));
        let answer = match parts.method {
            Method::GET => return self.get(&(collection, name)),
            Method::POST if self.is_ending(&collection) => {
                let (code, mut status) = refuse(403, "Forbidden", "being terminated");
                status["details"] = json!({ "causes": [{ "reason": "NamespaceTerminating" }] });
                (code, status)
            }
            Method::POST if self.is_over_quota(&collection) => {
                refuse(403, "Forbidden", "pods is forbidden: exceeded quota: pods")
            }
            Method::POST => match bounds::broken(&collection, &body) {
                Some(why) => refuse(422, "Invalid", &why),
                None if query.contains("dryRun=All") => (StatusCode::CREATED, body.clone()),
                None => self.create(collection, body.clone()),
            },
            Method::PATCH => self.patch(&(collection, name), &sub, &kind, &query, body.clone()),
            Method::DELETE => self.delete(&(collection, name), &body),
            _ => refuse(405, "MethodNotAllowed", "not in this double"),
        };
        if answer.0.is_success() && is_write {
            self.writes_left = self.writes_left.map(|left| left.saturating_sub(1));
            let of_post = body.pointer("/metadata/name").and_then(Value::as_str);
            let what = match of_post.filter(|_| parts.method == Method::POST) {
                Some(name) => format!("{what}/{name}"),
                None => what,
            };
            if self.log.is_none() {
                requests::look_up(parts, before.as_ref(), &body);
            }
            self.writes.push(format!("{} {what}", parts.method));
            self.bodies.push(body);
        }
        answer
    }

    /// The kinds of an API, of which one is enough.
    fn kinds(&self, path: &str) -> Answer {
        if self.unknown.iter().any(|unknown| path.contains(unknown)) {
            return (StatusCode::NOT_FOUND, json!("404 page not found"));
        }
        let kind = json!({
            "name": "volumesnapshots", "singularName": "volumesnapshot", "namespaced": true,
            "kind": "VolumeSnapshot", "verbs": ["create", "get", "list", "watch"],
        });
        let version = path.trim_start_matches("apis/");
        let list = json!({
            "kind": "APIResourceList", "groupVersion": version, "resources": [kind],
        });
        (StatusCode::OK, list)
    }

    fn refusal(&mut self, method: &Method, what: &str) -> Option<u16> {
        let mut all = self.refusals.iter_mut();
        let is_meant = |part: &str| match part.strip_suffix('$') {
            Some(end) => what.ends_with(end),
            None => what.contains(part),
        };
        let found = all.find(|(m, part, _, left)| m == method && *left > 0 && is_meant(part))?;
        found.3 -= 1;
        Some(found.2)
    }

    fn is_over_quota(&self, collection: &str) -> bool {
        let pods = self.objects.keys().filter(|(c, _)| c.ends_with("/pods"));
        let most = self.most_pods.unwrap_or(usize::MAX);
        collection.ends_with("/pods") && pods.count() >= most
    }

    fn is_ending(&self, collection: &str) -> bool {
        let within = |namespace: &String| collection.contains(&format!("/namespaces/{namespace}/"));
        self.ending.iter().any(within)
    }

    fn get(&self, place: &Place) -> Answer {
        match self.objects.get(place) {
            Some(object) => (StatusCode::OK, object.clone()),
            None => refuse(404, "NotFound", "not found"),
        }
    }

    fn next(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    pub(super) fn create(&mut self, collection: String, mut object: Value) -> Answer {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let place = (collection, name);
        if self.objects.contains_key(&place) {
            return refuse(409, "AlreadyExists", "already exists");
        }
        let version = self.next();
        let uid = format!("00000000-0000-4000-8000-{:012}", self.version);
        let meta = &mut object["metadata"];
        if meta["uid"].is_null() {
            meta["uid"] = json!(uid);
        }
        meta["resourceVersion"] = json!(version);
        meta["generation"] = json!(1);
        meta["creationTimestamp"] = json!(self.time());
        self.insert(place, object.clone());
        (StatusCode::CREATED, object)
    }

    fn time(&self) -> String {
        let fixed = || "2026-01-01T00:00:00Z".to_owned();
        self.clock.as_ref().map_or_else(fixed, |clock| clock())
    }

    fn insert(&mut self, place: Place, object: Value) {
        self.show(&place, &object, false);
        self.objects.insert(place, object);
    }

    fn show(&mut self, place: &Place, object: &Value, is_removed: bool) {
        if let Some(log) = &mut self.log {
            log.push(Shown {
                place: place.clone(),
                object: object.clone(),
                is_removed,
            });
        }
    }

    fn patch(&mut self, place: &Place, sub: &str, kind: &str, query: &str, body: Value) -> Answer {
        let Some(old) = self.objects.get(place).cloned() else {
            return refuse(404, "NotFound", "not found");
        };
        for field in ["resourceVersion", "uid"] {
            let wanted = &body["metadata"][field];
            if !wanted.is_null() && *wanted != old["metadata"][field] {
                return refuse(409, "Conflict", "the object has been modified");
            }
        }
        let mut new = old.clone();
        let is_trial = query.contains("dryRun=All");
        if kind.contains("json-patch") {
            let patch: json_patch::Patch = serde_json::from_value(body).unwrap();
            if let Err(error) = json_patch::patch(&mut new, &patch) {
                return refuse(422, "Invalid", &error.to_string());
            }
            for field in ["resourceVersion", "uid"] {
                if new["metadata"][field] != old["metadata"][field] {
                    return refuse(409, "Conflict", "the object has been modified");
                }
            }
        } else if kind.contains("apply-patch") {
            let owner = query
                .split('&')
                .find_map(|p| p.strip_prefix("fieldManager="));
            let key = (place.clone(), format!("{}/{sub}", owner.unwrap()));
            let before = self
                .applied
                .insert(key, body.clone())
                .unwrap_or(Value::Null);
            apply::apply(&mut new, &before, &body);
        } else {
            json_patch::merge(&mut new, &body);
        }
        // A subresource changes its own part only, the main resource everything else.
        let (mine, other) = if sub == "status" {
            ("status", "spec")
        } else {
            ("spec", "status")
        };
        if sub == "status" {
            let status = new["status"].take();
            new = old.clone();
            new[mine] = status;
        } else if has_status(&place.0) {
            new[other] = old[other].clone();
        }
        new["metadata"]["uid"] = old["metadata"]["uid"].clone();
        if let Some(why) = bounds::broken(&place.0, &new) {
            return refuse(422, "Invalid", &why);
        }
        if is_trial {
            return (StatusCode::OK, new);
        }
        self.store(place, &old, new)
    }

    /// Stores a changed object, from any writer.
    pub(super) fn store(&mut self, place: &Place, old: &Value, mut new: Value) -> Answer {
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        if new == *old {
            return (StatusCode::OK, new);
        }
        if new["spec"] != old["spec"] {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
            new["metadata"]["generation"] = json!(generation + 1);
        }
        new["metadata"]["resourceVersion"] = json!(self.next());
        let is_deleted = !new["metadata"]["deletionTimestamp"].is_null();
        let is_free = new["metadata"]["finalizers"]
            .as_array()
            .is_none_or(Vec::is_empty);
        let is_pod = place.0.ends_with("/pods");
        if is_deleted && is_free && !(is_pod && waits_for_kubelet(&new)) {
            self.remove(place);
        } else {
            self.insert(place.clone(), new.clone());
        }
        (StatusCode::OK, new)
    }

    pub(super) fn delete(&mut self, place: &Place, options: &Value) -> Answer {
        let Some(old) = self.objects.get(place).cloned() else {
            return refuse(404, "NotFound", "not found");
        };
        let wanted = &options["preconditions"]["uid"];
        if !wanted.is_null() && *wanted != old["metadata"]["uid"] {
            return refuse(409, "Conflict", "another uid");
        }
        let wanted = &options["preconditions"]["resourceVersion"];
        if !wanted.is_null() && *wanted != old["metadata"]["resourceVersion"] {
            return refuse(409, "Conflict", "another version");
        }
        let mut new = old.clone();
        if new["metadata"]["deletionTimestamp"].is_null() {
            new["metadata"]["deletionTimestamp"] = json!(self.time());
        }
        let grace = options["gracePeriodSeconds"].as_i64().unwrap_or(30);
        new["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        let is_free = new["metadata"]["finalizers"].is_null();
        if grace == 0 && is_free {
            // Without waiting for kubelet.
            self.remove(place);
            return (StatusCode::OK, new);
        }
        self.store(place, &old, new)
    }

    /// Goes back to an earlier state, in which no resource version comes again.
    pub(super) fn revert(&mut self, earlier: Self) {
        let version = self.version;
        *self = Self { version, ..earlier };
    }

    /// Takes an object and what was applied to it away.
    pub(super) fn remove(&mut self, place: &Place) {
        if let Some(last) = self.objects.remove(place) {
            self.show(place, &last, true);
        }
        self.applied.retain(|(of, _), _| of != place);
    }
}

fn has_status(collection: &str) -> bool {
    collection.contains("vmlet.dev") || collection.ends_with("/pods")
}

/// kubelet has not said yet that the pod ended.
fn waits_for_kubelet(object: &Value) -> bool {
    let is_bound = !object["spec"]["nodeName"].is_null();
    let phase = object["status"]["phase"].as_str().unwrap_or_default();
    is_bound && !matches!(phase, "Succeeded" | "Failed")
}

/// Collection, name and subresource of a path.
pub(super) fn split(path: &str) -> (String, String, String) {
    let parts: Vec<_> = path.split('/').collect();
    let base = if parts[0] == "api" { 2 } else { 3 };
    let plural = if parts.get(base) == Some(&"namespaces") && parts.len() > base + 2 {
        base + 2
    } else {
        base
    };
    let at = |index: usize| parts.get(index).map_or(String::new(), |p| (*p).to_owned());
    (parts[..=plural].join("/"), at(plural + 1), at(plural + 2))
}
