//! URLs that are nearly right. `./scripts/fuzz` reads more of them.

use super::*;

#[test]
fn url_of_any_form_is_a_deployment_or_a_short_harmless_error() {
    let examples = [
        "redis://user:QZ7X@host:6379/3?protocol=resp3&client_name=a",
        "rediss://localhost?ssl_ca_certs=/ca.pem&ssl_certfile=/c&ssl_keyfile=/k&ssl_server_name=x",
        "redis+sentinel://:QZ7X@a:1,[::1]:2/service/0?sentinel_password=QZ7X&sentinel_tls=false",
        "valkeys+cluster://a:1,b:2",
        "redis+quorum://a:1,b:2,c:3/1",
        "redis+unix:///run/redis.sock?db=2&user=u&pass=QZ7X",
    ];
    let words = [
        "%41",
        "%FF",
        "é",
        "\u{202e}",
        "[::1]",
        "QZ7X",
        "&db=1",
        "sentinelMasterId",
    ];
    test_support::fuzz("urls", &examples, &words, |input| {
        let url = String::from_utf8_lossy(input);
        match parse(&url) {
            Ok(deployment) => Ok(format!("{deployment:?}").len() / 32),
            Err(error) => {
                let shown = error.to_string();
                let is_harmless = !shown.chars().any(char::is_control);
                assert!(is_harmless && shown.len() < 1_000, "{shown:?}");
                Err(shown.len() / 8)
            }
        }
    });
}
