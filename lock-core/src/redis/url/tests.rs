use super::super::deployment::{
    Deployment, Login, NodeAddress, Protocol, Sentinels, TlsFiles, Topology,
};
use super::parse;

mod bad_input;
mod fuzz;
mod properties;

/// TLS needs a feature. Without it, all its URLs are errors.
const TLS: bool = cfg!(feature = "__tls");

#[track_caller]
fn deployment(url: &str) -> Deployment {
    match parse(url) {
        Ok(deployment) => deployment,
        Err(error) => panic!("{url}: {error}"),
    }
}

fn tcp(host: &str, port: u16) -> NodeAddress {
    NodeAddress::Tcp(host.to_owned(), port)
}

fn login(user: &str, password: &str, db: i64) -> Login {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Login {
        user: text(user),
        password: text(password),
        db,
        protocol: None,
    }
}

fn plain(topology: Topology, login: Login) -> Deployment {
    Deployment {
        topology,
        login,
        tls: None,
        client_name: None,
    }
}

#[test]
fn url_of_one_server_names_its_address_and_login() {
    for (url, node, login) in [
        ("redis://h", tcp("h", 6379), login("", "", 0)),
        ("REDIS://H/", tcp("H", 6379), login("", "", 0)),
        ("valkey://h:1/2", tcp("h", 1), login("", "", 2)),
        ("redis://h:/", tcp("h", 6379), login("", "", 0)),
        ("redis://h//3/", tcp("h", 6379), login("", "", 3)),
        ("redis://h?", tcp("h", 6379), login("", "", 0)),
        ("redis://h/1\n", tcp("h", 6379), login("", "", 1)),
        ("redis://u@h", tcp("h", 6379), login("u", "", 0)),
        ("redis://:p@h", tcp("h", 6379), login("", "p", 0)),
        ("redis://u:@h", tcp("h", 6379), login("u", "", 0)),
        ("redis://:p@q:r@h", tcp("h", 6379), login("", "p@q:r", 0)),
        (
            "redis://us%65r:%40%2f%C3%A9+@my_host-1.a:65535/4294967295",
            tcp("my_host-1.a", 65535),
            login("user", "@/é+", 4_294_967_295),
        ),
        ("redis://[::1]:7000/1", tcp("::1", 7000), login("", "", 1)),
        (
            "redis://[FE80:0::1]",
            tcp("fe80::1", 6379),
            login("", "", 0),
        ),
    ] {
        let expected = plain(Topology::Standalone(node), login);
        assert_eq!(deployment(url), expected, "{url}");
    }
}

#[test]
fn url_of_a_socket_has_its_login_in_parameters() {
    for (url, path, login) in [
        ("unix:///s", "/s", login("", "", 0)),
        ("redis+unix:///a%20b/s", "/a b/s", login("", "", 0)),
        ("valkey+unix://localhost/s", "/s", login("", "", 0)),
        (
            "unix:///a@b?user=u&pass=c@d%2B+&db=3",
            "/a@b",
            login("u", "c@d+ ", 3),
        ),
        ("unix:///s?user=&pass=&db=0", "/s", login("", "", 0)),
    ] {
        let expected = plain(Topology::Standalone(NodeAddress::Unix(path.into())), login);
        assert_eq!(deployment(url), expected, "{url}");
    }
}

#[test]
fn url_of_sentinels_names_the_service() {
    let both = [tcp("a", 26379), tcp("::1", 5)];
    let of_sentinels = login("su", "s:p", 0);
    for (url, sentinels, service, login_to_sentinels, login_to_servers) in [
        (
            "redis+sentinel://a/m",
            &both[..1],
            "m",
            login("", "", 0),
            login("", "", 0),
        ),
        (
            "valkey+sentinel://u:p@a,[::1]:5/my%2Fm/3?sentinel_username=su&sentinel_password=s:p",
            &both,
            "my/m",
            of_sentinels.clone(),
            login("u", "p", 3),
        ),
        (
            "redis-sentinel://:p@a,[::1]:5/2?sentinelMasterId=m",
            &both,
            "m",
            login("", "", 0),
            login("", "p", 2),
        ),
        (
            "redis-sentinel://a?sentinelMasterId=m&db=4&sentinel_tls=false",
            &both[..1],
            "m",
            login("", "", 0),
            login("", "", 4),
        ),
        (
            "redis+sentinel://a/1?sentinelMasterId=m",
            &both[..1],
            "m",
            login("", "", 0),
            login("", "", 1),
        ),
    ] {
        let topology = Topology::Sentinel(Sentinels {
            addresses: sentinels.to_vec(),
            service: service.to_owned(),
            login: login_to_sentinels,
            tls: false,
        });
        assert_eq!(deployment(url), plain(topology, login_to_servers), "{url}");
    }
}

#[test]
fn url_of_a_cluster_names_its_nodes() {
    let nodes = vec![tcp("a", 6379), tcp("b", 7000), tcp("::1", 6379)];
    for scheme in ["redis+cluster", "redis-cluster", "valkey+cluster"] {
        for end in ["", "/", "/0", "?"] {
            let url = format!("{scheme}://u:p@a,b:7000,[::1]{end}");
            let topology = Topology::Cluster(nodes.clone());
            assert_eq!(
                deployment(&url),
                plain(topology, login("u", "p", 0)),
                "{url}"
            );
        }
    }
    let one = Topology::Cluster(vec![tcp("a", 6379)]);
    assert_eq!(
        deployment("redis+cluster://a"),
        plain(one, login("", "", 0))
    );
}

#[test]
fn servers_of_a_quorum_share_login_and_name() {
    for (hosts, count) in [("a,b:1,a:1", 3), ("a,b,c,d", 4), ("a,b,c,d,[::1]", 5)] {
        let url = format!("redis+quorum://u:p@{hosts}/2?client_name=n&protocol=3");
        let quorum = deployment(&url);
        let Topology::Quorum(servers) = &quorum.topology else {
            panic!("{url}: {quorum:?}");
        };
        assert_eq!(servers.len(), count);
        let mut login = login("u", "p", 2);
        login.protocol = Some(Protocol::Resp3);
        for deployment in servers.iter().chain([&quorum]) {
            assert_eq!(deployment.login, login);
            assert_eq!(deployment.client_name.as_deref(), Some("n"));
            assert_eq!(deployment.tls, None);
        }
        let is_one =
            |deployment: &Deployment| matches!(deployment.topology, Topology::Standalone(_));
        assert!(servers.iter().all(is_one), "{servers:?}");
        let first = &servers[0].topology;
        assert_eq!(*first, Topology::Standalone(tcp("a", 6379)));
    }
}

#[test]
fn parameters_name_the_protocol_and_the_client() {
    for (value, protocol) in [
        ("2", Protocol::Resp2),
        ("resp2", Protocol::Resp2),
        ("3", Protocol::Resp3),
        ("resp3", Protocol::Resp3),
    ] {
        for url in ["redis://h", "unix:///s", "redis+cluster://h"] {
            let url = format!("{url}?protocol={value}&&client_name=my%20app+1");
            let deployment = deployment(&url);
            assert_eq!(deployment.login.protocol, Some(protocol), "{url}");
            assert_eq!(deployment.client_name.as_deref(), Some("my app 1"), "{url}");
        }
    }
    assert_eq!(deployment("redis://h?client_name=").client_name, None);
    let deployment = deployment("redis+sentinel://h/m?protocol=2");
    let Topology::Sentinel(sentinel) = deployment.topology else {
        panic!("{:?}", deployment.topology);
    };
    assert_eq!(sentinel.login.protocol, Some(Protocol::Resp2));
}

#[test]
fn scheme_with_tls_names_its_files() {
    if !TLS {
        return;
    }
    let none = TlsFiles::default();
    let all = TlsFiles {
        ca: Some("/a b.pem".into()),
        certificate: Some("c.pem".into()),
        key: Some("k.pem".into()),
        server_name: Some("locks.example".into()),
    };
    let query = "?ssl_ca_certs=/a%20b.pem&ssl_certfile=c.pem&ssl_keyfile=k.pem&ssl_server_name=locks.example";
    for url in [
        "rediss://h",
        "valkeys://h",
        "rediss+sentinel://h/m",
        "valkeys+sentinel://h/m",
        "rediss+cluster://h",
        "rediss-cluster://h",
        "valkeys+cluster://h",
        "rediss+quorum://a,b,c",
        "valkeys+quorum://a,b,c",
    ] {
        assert_eq!(deployment(url).tls.as_ref(), Some(&none), "{url}");
        let deployment = deployment(&format!("{url}{query}"));
        assert_eq!(deployment.tls.as_ref(), Some(&all), "{url}");
        if let Topology::Quorum(servers) = &deployment.topology {
            let is_same = |server: &Deployment| server.tls.as_ref() == Some(&all);
            assert!(servers.iter().all(is_same));
        }
    }
    for (end, tls) in [
        ("", true),
        ("&sentinel_tls=true", true),
        ("&sentinel_tls=false", false),
    ] {
        let deployment = deployment(&format!("rediss-sentinel://h?sentinelMasterId=m{end}"));
        assert!(deployment.tls.is_some());
        let Topology::Sentinel(sentinel) = deployment.topology else {
            panic!("{:?}", deployment.topology);
        };
        assert_eq!(sentinel.tls, tls);
    }
}

#[test]
fn login_shows_no_password() {
    let deployment = deployment("redis+quorum://u:s3cret@a,b,c");
    assert!(!format!("{deployment:?}").contains("s3cret"));
}
