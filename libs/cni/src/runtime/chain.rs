//! Calls a chain of plugins, and builds the input of each.
//!
//! Invariant: a plugin gets its own configuration, plus the network's name and version, the
//! previous result, of the capability values those that it declares, and addresses to request in
//! any case.
//! Failure: a walk stops at the first plugin that fails, or continues and reports the first at its
//! end.

use std::time::{Duration, Instant};

use rscni_types::types::Cmd;
use serde_json::{Map, Value};

use super::{Error, Result, Runtime, del_has_result};
use crate::cache::Entry;
use crate::invoke::Call;
use crate::{AddResult, Attachment, AttachmentId, IPS, NetworkConfig, Plugin};

/// What DEL does when a plugin fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walk {
    /// Leaves the rest: an address, say, must not be free for others while rules still point to it.
    StopAtFirst,
    /// Tries every plugin: the attachment was never in use.
    ToTheEnd,
}

impl Runtime {
    pub(super) async fn add_chain(
        &self,
        network: &NetworkConfig,
        attachment: &Attachment,
    ) -> Result<AddResult> {
        let mut previous: Option<AddResult> = None;
        let mut took = Duration::ZERO;
        for plugin in network.plugins() {
            let result = previous.as_ref().map(|p| &p.raw);
            let config = plugin_input(network, plugin, Some(attachment), result, None);
            let call = Call {
                command: Cmd::Add,
                network: network.name(),
                plugin: plugin.kind(),
                attachment: Some(attachment),
                config,
            };
            let begun = Instant::now();
            let added = self.invoker.add(call, network.version()).await;
            took += begun.elapsed();
            previous = Some(added.map_err(Error::plugin)?);
        }
        // A network without plugins does not get past its parser.
        let result = previous.ok_or_else(|| Error::NotAttached {
            id: attachment.id(),
        })?;
        Ok(AddResult { took, ..result })
    }

    pub(super) async fn del_chain(
        &self,
        network: &NetworkConfig,
        attachment: &Attachment,
        result: Option<&Value>,
        walk: Walk,
    ) -> Result<()> {
        let mut attachment = attachment.clone();
        // The specification leaves the path empty for a namespace that no longer exists, after a
        // reboot say.
        if !tokio::fs::try_exists(&attachment.netns)
            .await
            .unwrap_or(true)
        {
            attachment.netns.clear();
        }
        let result = result.filter(|_| del_has_result(network.version()));
        let mut outcome = Ok(());
        for plugin in network.plugins().iter().rev() {
            let call = Call {
                command: Cmd::Del,
                network: network.name(),
                plugin: plugin.kind(),
                attachment: Some(&attachment),
                config: plugin_input(network, plugin, Some(&attachment), result, None),
            };
            let deleted = self
                .invoker
                .run(&call)
                .await
                .map(drop)
                .map_err(Error::plugin);
            outcome = outcome.and(deleted);
            if outcome.is_err() && walk == Walk::StopAtFirst {
                break;
            }
        }
        outcome
    }

    /// DEL for what the cache knows, and then the cache forgets it.
    pub(super) async fn del_entry(&self, entry: Entry) -> Result<()> {
        let network = entry.network().map_err(Error::Network)?;
        let walk = if entry.result.is_some() {
            Walk::StopAtFirst
        } else {
            Walk::ToTheEnd
        };
        self.del_chain(&network, &entry.attachment(), entry.result.as_ref(), walk)
            .await?;
        self.on_disk(move |cache| cache.remove(&entry.network_name, &entry.id()))
            .await
    }

    /// Takes down what a failed ADD has made. Its failure is logged: the caller gets the one of
    /// ADD.
    pub(super) async fn undo(&self, network: &NetworkConfig, attachment: &Attachment) {
        let undone = match self
            .del_chain(network, attachment, None, Walk::ToTheEnd)
            .await
        {
            Ok(()) => {
                let name = network.name().to_owned();
                let id = attachment.id();
                self.on_disk(move |cache| cache.remove(&name, &id)).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = undone {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(
                network = network.name(),
                container = attachment.container_id,
                %error,
                cause,
                "failed attachment not undone, cache entry kept"
            );
        }
    }
}

/// The standard input of one plugin.
pub(super) fn plugin_input(
    network: &NetworkConfig,
    plugin: &Plugin,
    attachment: Option<&Attachment>,
    previous: Option<&Value>,
    valid: Option<&[AttachmentId]>,
) -> Vec<u8> {
    let mut config = plugin.config().clone();
    config.insert("name".into(), network.name().into());
    config.insert("cniVersion".into(), network.version().to_string().into());
    if let Some(previous) = previous {
        config.insert("prevResult".into(), previous.clone());
    }
    let values: Map<String, Value> = attachment
        .into_iter()
        .flat_map(|attachment| &attachment.capabilities)
        .filter(|(capability, _)| plugin.has_capability(capability))
        .map(|(capability, value)| (capability.clone(), value.clone()))
        .collect();
    if let Some(ips) = attachment.and_then(|attachment| attachment.capabilities.get(IPS))
        && !plugin.has_capability(IPS)
    {
        ask_for_addresses(&mut config, ips);
    }
    if !values.is_empty() {
        config.insert("runtimeConfig".into(), Value::Object(values));
    }
    if let Some(valid) = valid {
        let list: Vec<Value> = valid
            .iter()
            .map(|id| serde_json::json!({"containerID": id.container_id, "ifname": id.ifname}))
            .collect();
        // The first name is the specification's; plugins built on its first text know the second.
        config.insert("cni.dev/valid-attachments".into(), list.clone().into());
        config.insert("cni.dev/attachments".into(), list.into());
    }
    Value::Object(config).to_string().into_bytes()
}

/// The older of the two conventions for requested addresses, for plugins that do not declare the
/// capability.
fn ask_for_addresses(config: &mut Map<String, Value>, ips: &Value) {
    let args = config
        .entry("args")
        .or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(args) = args else {
        return;
    };
    let ours = args
        .entry("cni")
        .or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(ours) = ours {
        ours.insert(IPS.into(), ips.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_reach_plugins_by_the_convention_that_they_know() {
        let network = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
            {"type": "bridge", "args": {"cni": {"mac": "x"}}},
            {"type": "new", "capabilities": {"ips": true}},
        ]});
        let network = NetworkConfig::parse(network.to_string().as_bytes()).unwrap();
        let ips = json!(["10.1.0.5", "fd00::5"]);
        let attachment = Attachment {
            container_id: "c0ffee".to_owned(),
            netns: "/n".into(),
            ifname: "eth0".to_owned(),
            args: Vec::new(),
            capabilities: BTreeMap::from([(IPS.to_owned(), ips.clone())]),
        };
        let received = |plugin: usize| -> Value {
            let plugin = &network.plugins()[plugin];
            let input = plugin_input(&network, plugin, Some(&attachment), None, None);
            serde_json::from_slice(&input).unwrap()
        };
        assert_eq!(
            received(0)["args"],
            json!({"cni": {"mac": "x", "ips": ips}})
        );
        assert_eq!(received(0)["runtimeConfig"], Value::Null);
        assert_eq!(received(1)["args"], Value::Null);
        assert_eq!(received(1)["runtimeConfig"], json!({"ips": ips}));
    }
}
