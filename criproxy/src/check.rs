//! The command `check`: explains a configuration, and calls each runtime.
//!
//! Invariant: nothing is changed: neither a runtime nor the state directory.
//! Failure: none; what does not answer is part of the report.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cri_proto::v1;
use prost::Message;

use crate::backend::{Backend, Link};
use crate::config::{Config, Secondary};
use crate::metrics::Metrics;
use crate::proxy::Call;
use crate::state::{BackendIndex, LastKnown, recall};

/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

const VERSION: &str = "/runtime.v1.RuntimeService/Version";
const STATUS: &str = "/runtime.v1.RuntimeService/Status";
const SANDBOXES: &str = "/runtime.v1.RuntimeService/ListPodSandbox";

/// What was found.
#[derive(Debug)]
pub struct Report {
    /// For people.
    pub text: String,
    /// Whether every runtime answered.
    pub well: bool,
}

/// Calls all runtimes.
pub async fn report(config: &Config) -> Report {
    let mut text = String::new();
    let listening = query(config, &config.listen, "the proxy").await;
    let listening = match listening {
        Ok(answer) => format!("answers as {answer}"),
        Err(why) => format!("does not answer: {why}"),
    };
    line(
        &mut text,
        "listen",
        &format!("{} {listening}", config.listen.display()),
    );
    line(&mut text, "state", &config.state_dir.display().to_string());
    let metrics = config
        .metrics
        .as_ref()
        .map(|m| format!("http://{}/metrics", m.listen));
    line(
        &mut text,
        "metrics",
        &metrics.unwrap_or_else(|| "not served".into()),
    );

    let primary = &config.primary;
    let mut well = runtime(&mut text, config, "primary", &primary.name, &primary.socket).await;
    line(
        &mut text,
        "  serves",
        "every pod that no other runtime serves",
    );
    for secondary in &config.secondary {
        let name = &secondary.name;
        let socket = &secondary.socket;
        well &= runtime(&mut text, config, "secondary", name, socket).await;
        serves(&mut text, secondary);
        line(&mut text, "  remembered", &remembered(config, name));
    }
    Report { text, well }
}

async fn runtime(
    text: &mut String,
    config: &Config,
    role: &str,
    name: &str,
    socket: &Path,
) -> bool {
    line(text, role, &format!("{name} at {}", socket.display()));
    let answer = query(config, socket, name).await;
    match &answer {
        Ok(answer) => line(text, "  answers as", answer),
        Err(why) => line(text, "  does not answer", why),
    }
    answer.is_ok()
}

/// Name, version, conditions and number of sandboxes of whatever answers on a socket.
async fn query(config: &Config, socket: &Path, name: &str) -> Result<String, String> {
    let link = Link::new(socket, config.limits.connect_timeout.get());
    let metrics = Arc::new(Metrics::new());
    let backend = Backend::new(BackendIndex(0), name.into(), link, metrics);
    let ask = async |path| {
        let request = Call::own(path, "check").copy(&Bytes::new());
        let answer = backend.unary_within(TIMEOUT, "check", request).await;
        answer.map(|answer| answer.message).map_err(|e| e.reason())
    };
    let unreadable = |e: prost::DecodeError| e.to_string();
    let version = v1::VersionResponse::decode(ask(VERSION).await?).map_err(unreadable)?;
    let status = v1::StatusResponse::decode(ask(STATUS).await?).map_err(unreadable)?;
    let pods = v1::ListPodSandboxResponse::decode(ask(SANDBOXES).await?).map_err(unreadable)?;
    let conditions = status.status.unwrap_or_default().conditions;
    let conditions: Vec<_> = (conditions.iter())
        .map(|c| format!("{}={}", c.r#type, c.status))
        .collect();
    let handlers: Vec<_> = status
        .runtime_handlers
        .iter()
        .map(|h| format!("{:?}", h.name))
        .collect();
    Ok(format!(
        "{} {}, {}, handlers {}, {} sandboxes",
        version.runtime_name,
        version.runtime_version,
        conditions.join(" "),
        handlers.join(" "),
        pods.items.len(),
    ))
}

fn serves(text: &mut String, secondary: &Secondary) {
    let annotation = format!("annotation {}", crate::routes::TARGET);
    for (what, values) in [
        ("RuntimeClass handler", secondary.handlers.as_slice()),
        (&annotation, &secondary.target_runtimes),
        ("image names below", &secondary.image_prefixes),
    ] {
        if !values.is_empty() {
            line(text, "  serves", &format!("{what} {}", values.join(", ")));
        }
    }
    if let Some(suffix) = &secondary.id_suffix {
        line(text, "  serves", &format!("ids that end with {suffix}"));
    }
}

/// What is answered while a runtime is away.
fn remembered(config: &Config, name: &str) -> String {
    let known = recall(&config.state_dir, name);
    if known
        .iter()
        .all(|known| *known == LastKnown::NeverConnected)
    {
        return "nothing: it was never connected".into();
    }
    let kinds = ["sandboxes", "containers", "images"].iter().zip(&known);
    let parts: Vec<_> = kinds
        .map(|(kind, known)| match known.count() {
            Some(count) => format!("{count} {kind}"),
            None => format!("{kind} lost"),
        })
        .collect();
    parts.join(", ")
}

fn line(text: &mut String, what: &str, value: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{what:<18} {value}");
}
