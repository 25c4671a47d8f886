//! The sources of first-boot data.
//!
//! Invariant: a Secret's content is checked here for the presence of a key only; it is neither
//! kept nor logged.
//! Failure: a Secret or key that is missing.

use k8s_openapi::api::core::v1::Secret;

use super::{Missing, Pass};

/// Key of user data when the machine does not name one.
pub(crate) const DEFAULT_KEY: &str = "user-data";

pub(super) async fn check(pass: &Pass<'_>) -> Result<(), Missing> {
    let cloud_init = pass.vm.spec.bootstrap.as_ref();
    let cloud_init = cloud_init.and_then(|b| b.cloud_init.as_ref());
    let Some(source) = cloud_init.and_then(|c| c.user_data.as_ref()) else {
        return Ok(());
    };
    let name = &source.name;
    let found = pass.api::<Secret>().get_opt(name).await;
    let found = found.map_err(|e| Missing::read(&format!("secret {name}"), &e))?;
    let Some(secret) = found else {
        return Err(Missing::new(
            "NotFound",
            format!("secret {name} does not exist"),
        ));
    };
    let key = source.key.as_deref().unwrap_or(DEFAULT_KEY);
    let has_key = secret.data.is_some_and(|d| d.contains_key(key))
        || secret.string_data.is_some_and(|d| d.contains_key(key));
    if has_key {
        Ok(())
    } else {
        let message = format!("secret {name} has no key {key}");
        Err(Missing::new("RequiredKeyNotFound", message))
    }
}
