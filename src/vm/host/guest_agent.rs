//! Whether the daemon has an agent to give to guests.
//!
//! Invariant: a program that is installed later is seen without a restart of the daemon.
//! Failure: a sentence that names the file.

use std::path::Path;

use crate::platform::Platform;
use crate::vm::service::Containers;

impl<P: Platform> Containers<P> {
    /// Why guests get no agent by their seed images, if they get none.
    pub async fn guest_agent_missing(&self) -> Option<String> {
        missing(&self.settings.guest_agent).await
    }
}

async fn missing(program: &Path) -> Option<String> {
    let error = match tokio::fs::metadata(program).await {
        Ok(found) if found.is_file() => return None,
        Ok(_) => "it is not a file".to_owned(),
        Err(error) => error.to_string(),
    };
    Some(format!("failed to find {}: {error}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_agent_that_is_installed_later_is_found() {
        let scratch = tempfile::tempdir().unwrap();
        let program = scratch.path().join("vmlet-guest");
        let words = missing(&program).await.unwrap();
        assert!(words.contains("vmlet-guest: No such file"), "{words}");
        std::fs::create_dir(&program).unwrap();
        let words = missing(&program).await.unwrap();
        assert!(words.contains("it is not a file"), "{words}");
        std::fs::remove_dir(&program).unwrap();
        std::fs::write(&program, "x").unwrap();
        assert_eq!(missing(&program).await, None);
    }
}
