//! The settings that a daemon is given.
//!
//! Invariant: all of them are in use, except one that is to be refused.
//! Failure: `UNIMPLEMENTED`, as from a daemon that knows no settings.

use std::collections::BTreeMap;

use nodeapi::v1::node_setting_result::Outcome;
use nodeapi::v1::{
    NodeSettingInForce, NodeSettingResult, SetNodeSettingsRequest, SetNodeSettingsResponse,
};
use tonic::Status;

/// What it was given last.
#[derive(Debug, Default)]
pub(super) struct NodeSettings {
    request: SetNodeSettingsRequest,
    pub(super) times: u32,
    pub(super) is_old: bool,
    /// The key of the one that is refused.
    pub(super) refused: Option<String>,
}

impl NodeSettings {
    pub(super) fn given(&self) -> BTreeMap<String, String> {
        let settings = self.request.settings.iter();
        settings.map(|s| (s.key.clone(), s.value.clone())).collect()
    }

    pub(super) fn take(
        &mut self,
        request: SetNodeSettingsRequest,
    ) -> Result<SetNodeSettingsResponse, Status> {
        self.times += 1;
        if self.is_old {
            return Err(Status::unimplemented("no such call"));
        }
        self.request = request;
        let mut answer = SetNodeSettingsResponse::default();
        for setting in &self.request.settings {
            let is_refused = self.refused.as_ref() == Some(&setting.key);
            let (outcome, message) = if is_refused {
                (Outcome::Refused, "not on this node".to_owned())
            } else {
                (Outcome::InUse, String::new())
            };
            answer.results.push(NodeSettingResult {
                key: setting.key.clone(),
                outcome: outcome.into(),
                message,
            });
            answer.in_force.push(NodeSettingInForce {
                key: setting.key.clone(),
                value: setting.value.clone(),
                source: format!("NodeConfig {}", setting.node_config),
            });
        }
        Ok(answer)
    }
}
