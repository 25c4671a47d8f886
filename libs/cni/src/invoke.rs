//! Runs plugins: one child process per command, fed and read at once, bounded in every direction.
//!
//! Invariant: a call ends by its deadline, and then nothing of the plugin's process group is left;
//! the child sees only the variables of the specification and a fixed `PATH`, never our own
//! environment.
//! Failure: each way a plugin can misbehave is a separate variant of [`Failure`]. A
//! process that leaves the group (a daemon) is not followed.

mod child;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rscni_types::types::{
    CNI_ARGS, CNI_COMMAND, CNI_CONTAINERID, CNI_IFNAME, CNI_NETNS, CNI_PATH, Cmd,
};
use rscni_types::version::SpecVersion;
use serde_json::Value;

use crate::text::excerpt;
use crate::{AddResult, Attachment, ResultError, parse_result};

/// Where plugins find programs such as `iptables`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Longest text of a plugin in an error, in characters.
const EXCERPT: usize = 1024;

/// A plugin call that failed. What exactly is its source.
#[derive(Debug, thiserror::Error)]
#[error("CNI plugin {plugin} of network {network}: {command}")]
pub struct InvokeError {
    /// Type of the plugin.
    pub plugin: String,
    /// Name of the network.
    pub network: String,
    /// `ADD`, `DEL`, `CHECK`, `GC` or `STATUS`.
    pub command: &'static str,
    /// What happened.
    #[source]
    pub failure: Failure,
}

/// What can happen when a plugin is called.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No executable file of that name in any plugin directory.
    #[error("no such plugin in {}", .dirs.iter().map(|d| d.to_string_lossy()).collect::<Vec<_>>().join(":"))]
    Missing {
        /// Where it was looked for.
        dirs: Vec<PathBuf>,
    },
    /// The program could not be started.
    #[error("start {path}")]
    Start {
        /// The program.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The system failed while the plugin ran.
    #[error("talk to the plugin")]
    Talk(#[source] std::io::Error),
    /// The plugin did not end in time and was killed.
    #[error("not done within {} ms, killed", .deadline.as_millis())]
    TimedOut {
        /// What it was given.
        deadline: Duration,
    },
    /// The plugin printed more than a result can be and was killed.
    #[error("printed more than {limit} bytes, killed")]
    TooMuchOutput {
        /// What is allowed.
        limit: usize,
    },
    /// The plugin reported an error in the form of the specification.
    #[error("{message} (code {code})")]
    Reported {
        /// Code of the specification below 100, the plugin's own from 100.
        code: u32,
        /// The plugin's message and details.
        message: String,
    },
    /// The plugin failed without a message that the specification knows.
    #[error("ended with {status}: {words}")]
    Crashed {
        /// Exit status or signal.
        status: std::process::ExitStatus,
        /// What it wrote to standard error, or else to standard output.
        words: String,
    },
    /// The plugin claims success without a result.
    #[error("printed no result")]
    NoOutput,
    /// The plugin claims success and printed something else than JSON.
    #[error("printed something else than a result: {words}")]
    Garbage {
        /// How it begins.
        words: String,
    },
    /// The plugin printed JSON that is no result.
    #[error("printed an unusable result")]
    Unusable(#[source] ResultError),
}

/// One call of one plugin.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) command: Cmd,
    pub(crate) network: &'a str,
    pub(crate) plugin: &'a str,
    /// For ADD, CHECK and DEL.
    pub(crate) attachment: Option<&'a Attachment>,
    pub(crate) config: Vec<u8>,
}

/// Notices each call of a plugin that ended.
pub trait Observer: std::fmt::Debug + Send + Sync {
    /// A plugin of this type was called with this command.
    fn called(&self, plugin: &str, command: &'static str, took: Duration, succeeded: bool);
}

/// How plugins are found and how long they may take.
#[derive(Debug, Clone)]
pub(crate) struct Invoker {
    pub(crate) bin_dirs: Vec<PathBuf>,
    pub(crate) deadline: Duration,
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

impl Call<'_> {
    fn failed(&self, failure: Failure) -> InvokeError {
        InvokeError {
            plugin: self.plugin.into(),
            network: self.network.into(),
            command: self.command.into(),
            failure,
        }
    }
}

impl Invoker {
    /// Calls ADD and reads the result.
    pub(crate) async fn add(
        &self,
        call: Call<'_>,
        requested: SpecVersion,
    ) -> Result<AddResult, InvokeError> {
        let stdout = self.run(&call).await?;
        let result = if stdout.iter().all(u8::is_ascii_whitespace) {
            Err(Failure::NoOutput)
        } else {
            serde_json::from_slice::<Value>(&stdout)
                .map_err(|_| Failure::Garbage {
                    words: excerpt(&stdout, EXCERPT),
                })
                .and_then(|raw| parse_result(raw, requested).map_err(Failure::Unusable))
        };
        result.map_err(|failure| call.failed(failure))
    }

    /// Calls a plugin; returns what it printed.
    pub(crate) async fn run(&self, call: &Call<'_>) -> Result<Vec<u8>, InvokeError> {
        let started = Instant::now();
        let outcome = self.attempt(call).await;
        if let Some(observer) = &self.observer {
            let command = <&str>::from(call.command);
            observer.called(call.plugin, command, started.elapsed(), outcome.is_ok());
        }
        tracing::debug!(
            plugin = call.plugin,
            network = call.network,
            command = <&str>::from(call.command),
            took = ?started.elapsed(),
            ok = outcome.is_ok(), "CNI plugin called"
        );
        outcome.map_err(|failure| call.failed(failure))
    }

    /// Succeeds when every plugin in `kinds` is there and executable.
    pub(crate) async fn require(
        &self,
        network: &str,
        command: Cmd,
        kinds: impl Iterator<Item = &str>,
    ) -> Result<(), InvokeError> {
        for plugin in kinds {
            let call = Call {
                command,
                network,
                plugin,
                attachment: None,
                config: Vec::new(),
            };
            self.locate(plugin)
                .await
                .map_err(|failure| call.failed(failure))?;
        }
        Ok(())
    }

    async fn locate(&self, plugin: &str) -> Result<PathBuf, Failure> {
        for dir in &self.bin_dirs {
            let path = dir.join(plugin);
            let found = tokio::fs::metadata(&path).await;
            if found.is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0) {
                return Ok(path);
            }
        }
        Err(Failure::Missing {
            dirs: self.bin_dirs.clone(),
        })
    }

    async fn attempt(&self, call: &Call<'_>) -> Result<Vec<u8>, Failure> {
        let path = self.locate(call.plugin).await?;
        let mut command = tokio::process::Command::new(&path);
        command
            .env_clear()
            .env("PATH", PATH)
            .env(CNI_COMMAND, <&str>::from(call.command))
            .env(
                CNI_PATH,
                self.bin_dirs
                    .iter()
                    .map(|d| d.as_os_str())
                    .collect::<Vec<_>>()
                    .join(":".as_ref()),
            );
        if let Some(attachment) = call.attachment {
            command
                .env(CNI_CONTAINERID, &attachment.container_id)
                .env(CNI_NETNS, &attachment.netns)
                .env(CNI_IFNAME, &attachment.ifname)
                .env(CNI_ARGS, attachment.args_variable());
        }
        let ended = child::run(command, &path, &call.config, self.deadline).await?;
        if ended.status.success() {
            return Ok(ended.stdout);
        }
        Err(reported(&ended.stdout).unwrap_or_else(|| {
            let words = excerpt(&ended.stderr, EXCERPT);
            let words = if words.is_empty() {
                excerpt(&ended.stdout, EXCERPT)
            } else {
                words
            };
            Failure::Crashed {
                status: ended.status,
                words,
            }
        }))
    }
}

/// The specification's error object, read leniently: plugins differ in what they leave out.
fn reported(stdout: &[u8]) -> Option<Failure> {
    let value: Value = serde_json::from_slice(stdout).ok()?;
    let text = |name: &str| {
        let text = value.get(name).and_then(Value::as_str).unwrap_or_default();
        excerpt(text.as_bytes(), EXCERPT)
    };
    let code = u32::try_from(value.get("code")?.as_u64()?).ok()?;
    let message = match (text("msg"), text("details")) {
        (message, details) if details.is_empty() => message,
        (message, details) if message.is_empty() => details,
        (message, details) => format!("{message}: {details}"),
    };
    Some(Failure::Reported { code, message })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #[test]
        fn what_a_plugin_reports_is_one_bounded_line(
            code in prop_oneof![(0_u64..1000).prop_map(Value::from), any::<i64>().prop_map(Value::from), ".{0,4}".prop_map(Value::from)],
            msg in prop_oneof!["\\PC{0,40}", "[ -~\t\n\u{1b}]{0,40}", "x{4000}"],
            details in prop_oneof![Just(String::new()), "(.|\n){0,40}"],
            bytes in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let object = json!({"cniVersion": "1.0.0", "code": code, "msg": msg, "details": details});
            let object = object.to_string().into_bytes();
            for stdout in [object, bytes] {
                let Some(Failure::Reported { code: found, message }) = reported(&stdout) else {
                    continue;
                };
                prop_assert_eq!(code.as_u64(), Some(found.into()));
                prop_assert!(message.chars().count() <= 2 * (EXCERPT + 1) + 2);
                prop_assert!(!message.contains(char::is_control), "{:?}", message);
                let first = msg.split(|c: char| c.is_whitespace() || c.is_control());
                let first = first.filter(|word| !word.is_empty()).take(1);
                first.for_each(|word| assert_eq!(message.chars().next(), word.chars().next()));
            }
        }
    }
}
