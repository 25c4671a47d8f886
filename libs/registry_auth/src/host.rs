//! Hosts of registries, of which Docker Hub has three names.
//!
//! Invariant: names of one registry have one canonical host.
//! Failure: none.

/// Docker Hub in names of images.
pub const DOCKER_HUB: &str = "docker.io";
/// Its API.
const DOCKER_HUB_API: &str = "registry-1.docker.io";
/// Its name in credentials.
const DOCKER_HUB_INDEX: &str = "index.docker.io";

/// A host as names of images have it.
#[must_use]
pub fn canonical_host(host: &str) -> &str {
    match host {
        DOCKER_HUB_API | DOCKER_HUB_INDEX => DOCKER_HUB,
        host => host,
    }
}

/// The canonical host in a text that may be a URL, as credentials name it.
#[must_use]
pub fn host_in(text: &str) -> &str {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    canonical_host(rest.split('/').next().unwrap_or_default())
}

/// The host that serves the API of a registry where nothing else is configured.
#[must_use]
pub fn api_host(host: &str) -> &str {
    match canonical_host(host) {
        DOCKER_HUB => DOCKER_HUB_API,
        host => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_has_one_host_by_each_of_its_names() {
        assert_eq!(host_in("https://index.docker.io/v1/"), DOCKER_HUB);
        assert_eq!(host_in("registry-1.docker.io"), DOCKER_HUB);
        assert_eq!(host_in("r.example:5000"), "r.example:5000");
        assert_eq!(host_in("https://r.example/v2/"), "r.example");
        assert_eq!(api_host("docker.io"), "registry-1.docker.io");
        assert_eq!(api_host("index.docker.io"), "registry-1.docker.io");
        assert_eq!(api_host("r.example"), "r.example");
    }
}
