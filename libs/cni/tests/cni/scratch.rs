//! A directory with plugins, configurations and a cache.
//!
//! Invariant: every call of a plugin is recorded: order, standard input, environment.
//! Failure: a query for what was not recorded panics.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use cni::{Attachment, NetworkConfig, Runtime, Settings};
use serde_json::{Value, json};

/// The result of a plugin that works.
pub(crate) const RESULT: &str = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"10.9.0.2/24","interface":0}]}"#;

/// What a plugin does that works and is silent except on ADD.
pub(crate) const WORKS: &str = "if [ $CNI_COMMAND = ADD ]; then echo \"$RESULT\"; fi";

pub(crate) struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["bin", "conf", "netns", "calls"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("netns/pod"), "").unwrap();
        Self { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Puts a plugin there that records the call and then runs `body`, which sees `$RESULT`, and
    /// `$HERE` for this directory.
    pub(crate) fn plugin(&self, kind: &str, body: &str) {
        let here = self.dir.path().display();
        let script = format!(
            "#!/bin/sh\nHERE={here}\nRESULT='{RESULT}'\ncall=$HERE/calls/{kind}.$CNI_COMMAND\n\
             echo \"$CNI_COMMAND {kind}\" >>$HERE/log\nenv >$call.env\ncat >$call.in\n{body}\n"
        );
        self.program(kind, &script);
    }

    /// Puts a plugin there that is `script` and nothing more.
    ///
    /// Written by another process: were the file open for writing here while a parallel test forks,
    /// it could not be executed until that child has let go of it.
    pub(crate) fn program(&self, kind: &str, script: &str) {
        let status = std::process::Command::new("sh")
            .args(["-c", "printf %s \"$2\" >\"$1\" && chmod 755 \"$1\"", "sh"])
            .arg(self.path("bin").join(kind))
            .arg(script)
            .status();
        assert!(status.unwrap().success());
    }

    /// Calls so far, as `COMMAND plugin`.
    pub(crate) fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        text.lines().map(Into::into).collect()
    }

    pub(crate) fn forget_log(&self) {
        std::fs::write(self.path("log"), "").unwrap();
    }

    /// What the last such call read from standard input.
    pub(crate) fn input(&self, kind: &str, command: &str) -> Value {
        let bytes = std::fs::read(self.path(&format!("calls/{kind}.{command}.in"))).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    /// What the last such call had in its environment.
    pub(crate) fn variables(&self, kind: &str, command: &str) -> BTreeMap<String, String> {
        let text =
            std::fs::read_to_string(self.path(&format!("calls/{kind}.{command}.env"))).unwrap();
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs.map(|(k, v)| (k.into(), v.into())).collect()
    }

    /// Names of the files in the cache.
    pub(crate) fn cache(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path("cache/results")) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn runtime(&self) -> Runtime {
        self.runtime_within(Duration::from_secs(20))
    }

    pub(crate) fn runtime_within(&self, timeout: Duration) -> Runtime {
        Runtime::new(Settings {
            conf_dir: self.path("conf"),
            bin_dirs: vec![self.path("none"), self.path("bin")],
            cache_dir: self.path("cache"),
            timeout,
        })
    }

    pub(crate) fn attachment(&self, container: &str) -> Attachment {
        Attachment {
            container_id: container.into(),
            netns: self.path("netns/pod"),
            ifname: "eth0".into(),
            args: vec![
                ("IgnoreUnknown".into(), "1".into()),
                ("K8S_POD_NAME".into(), "p".into()),
            ],
            capabilities: BTreeMap::from([
                (
                    "portMappings".into(),
                    json!([{"hostPort": 8080, "containerPort": 80}]),
                ),
                ("bandwidth".into(), json!({"ingressRate": 1000})),
            ]),
        }
    }
}

/// A network of `kinds`.
pub(crate) fn network(version: &str, kinds: &[&str]) -> NetworkConfig {
    let plugins: Vec<Value> = kinds.iter().map(|kind| json!({"type": kind})).collect();
    parse(&json!({"cniVersion": version, "name": "net", "plugins": plugins}))
}

pub(crate) fn parse(config: &Value) -> NetworkConfig {
    NetworkConfig::parse(config.to_string().as_bytes()).unwrap()
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |e| e.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}
