//! Addresses that images are not fetched from.
//!
//! Invariant: a server at a refused address gets no request, and one text tells of all of them.
//! Failure: none expected.

use ipnet::IpNet;
use podspec::url_image_name;

use super::*;

/// A store that may fetch from these addresses.
async fn allowing(nets: &[&str]) -> TestEnvironment {
    let nets: Vec<IpNet> = nets.iter().map(|net| net.parse().unwrap()).collect();
    let env = TestEnvironment::with(|s| s.allowed_addresses = nets).await;
    env.server.offer("a.img", &disk(4, 1), "1");
    env
}

impl TestEnvironment {
    /// The port of the server, which listens at 127.0.0.1 alone.
    fn port(&self) -> &str {
        self.server.authority.rsplit_once(':').unwrap().1
    }

    async fn both(&self, url: &str) -> [Error; 2] {
        let name = url_image_name(url);
        let locator = Locator::new(&name, Some(url));
        let inspected = self.images.inspect(locator).await.unwrap_err();
        [self.images.pull(locator).await.unwrap_err(), inspected]
    }
}

fn assert_refused(error: &Error, location: &str) {
    assert!(matches!(error, Error::Address { .. }), "{error}");
    assert!(!error.is_passing(), "it is not tried again");
    let text = crate::one_line(error);
    let expected = format!(
        "refused: {location} leads to an address that this node fetches no images from; an \
         administrator may list it in images.allowed_addresses"
    );
    assert_eq!(text, expected);
}

#[tokio::test]
async fn a_server_at_a_refused_address_gets_no_request_however_it_is_named() {
    let env = allowing(&[]).await;
    let port = env.port();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433"] {
        let url = format!("http://{host}:{port}/a.img");
        for error in env.both(&url).await {
            let shown = reqwest::Url::parse(&url).unwrap();
            let shown = shown.host_str().unwrap();
            assert_refused(&error, &format!("{shown}:{port}/a.img"));
        }
    }
    assert!(env.server.seen().is_empty());
    assert!(env.partials().is_empty() && env.data().is_empty());
}

#[tokio::test]
async fn a_redirect_to_a_refused_address_is_not_followed() {
    let env = allowing(&["127.0.0.2/32"]).await;
    let open = Server::start_at("127.0.0.2").await;
    let port = env.port();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
        let target = format!("http://{host}:{port}/a.img");
        open.script([Step::Redirect(target.clone()), Step::Redirect(target)]);
        let url = format!("http://{}", open.name("there.img"));
        for error in env.both(&url).await {
            assert_refused(&error, &open.name("there.img"));
        }
    }
    assert_eq!(open.seen().len(), 6);
    assert!(env.server.seen().is_empty());
    assert!(env.partials().is_empty() && env.data().is_empty());
}

#[tokio::test]
async fn an_event_says_nothing_about_what_listens_at_a_refused_address() {
    let env = allowing(&[]).await;
    env.server.script([Step::Status(404)]);
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port().to_string()
    };
    let text = async |port: &str| {
        let name = format!("127.0.0.1:{port}/a.img");
        let error = env.images.pull(&name).await.unwrap_err();
        crate::one_line(&error).replace(port, "PORT")
    };
    assert_eq!(text(env.port()).await, text(&closed).await);
}

#[tokio::test]
async fn an_allowed_address_is_open_by_every_name() {
    let env = allowing(&["127.0.0.1/32"]).await;
    let port = env.port();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
        let url = format!("http://{host}:{port}/a.img");
        let name = url_image_name(&url);
        let pulled = env.images.pull(Locator::new(&name, Some(&url))).await;
        assert_eq!(pulled.unwrap().size, 2048);
    }
    // Others of its kind stay closed.
    let other = Server::start_at("127.0.0.2").await;
    let error = env.images.pull(&other.name("a.img")).await.unwrap_err();
    assert_refused(&error, &other.name("a.img"));
    assert!(other.seen().is_empty());
}
