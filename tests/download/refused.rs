//! Denied access, and responses that are no lists of files.

use super::*;

#[test]
fn refusals_say_what_to_do_and_where() {
    let hub = Hub::start(Content { token: Some("hf_right"), ..small() }, fine);
    let home = Home::new();
    let page = format!("accept the licence at {}/{KLEIN}", hub.url());
    Run::new(&mut home.download(&hub, &["4b"]))
        .fails(1, &[&page, "requires accepting its licence", "HF_TOKEN", "settings/tokens"]);
    let run = Run::new(home.download(&hub, &["4b"]).env("HF_TOKEN", "hf_other"));
    let run = run.fails(1, &["(403)", &page, "the account that the token belongs to"]);
    assert!(!run.stderr.contains("hf_other"), "{}", run.stderr);
    for (status, code, words) in [
        (401, "RepoNotFound", ["no repository", "private"]),
        (401, "", ["requires authentication (401)", "HF_TOKEN"]),
        (403, "", ["denies access (403)", KLEIN]),
        (404, "RepoNotFound", ["no repository", "name"]),
        (410, "", ["status 410", "HF_ENDPOINT"]),
    ] {
        let hub = Hub::start(small(), move |_, _, reply| *reply = Reply::new(status, &[("X-Error-Code", code)], ""));
        Run::new(&mut home.download(&hub, &["4b"])).fails(1, &words);
    }
}

#[test]
fn tokens_come_from_where_other_tools_have_them() {
    let hub = Hub::start(Content { token: Some("hf_right"), ..small() }, fine);
    let home = Home::new();
    fs::write(home.path().join("token"), "hf_right\n").unwrap();
    Run::new(&mut home.download(&hub, &["4b:model_index.json"])).succeeds();
    fs::write(home.path().join("token"), "hf_wrong").unwrap();
    fs::write(home.path().join("mine"), " hf_right ").unwrap();
    Run::new(home.download(&hub, &["4b:README.md"]).env("HF_TOKEN_PATH", home.path().join("mine"))).succeeds();
    Run::new(home.download(&hub, &["4b:teaser.jpg"]).env("HF_TOKEN", "hf_right")).succeeds();
    Run::new(&mut home.download(&hub, &["4b:vae/config.json"])).fails(1, &["403"]);
    let run = Run::new(home.download(&hub, &["4b"]).env("HF_TOKEN", "a token\nwith lines"));
    let run = run.fails(1, &["invalid characters", "in: HF_TOKEN"]);
    assert!(!run.stderr.contains("with lines"), "{}", run.stderr);
    // The token is sent to no server over an unencrypted connection.
    let mut elsewhere = home.download_from("http://no-such-host.invalid", &["4b"]);
    let run = Run::new(elsewhere.env("HF_TOKEN", "hf_right"));
    assert!(run.stderr.contains("the token is not sent"), "{}", run.stderr);
}

#[test]
fn what_is_no_list_of_files_is_said_to_be_none() {
    let cut = |seen: &Seen, _: usize, reply: &mut Reply| {
        if seen.path.contains("/tree/") {
            reply.cut = Some(100);
        }
    };
    let hub = Hub::start(small(), cut);
    Run::new(&mut Home::new().download(&hub, &["4b"])).fails(1, &["was interrupted"]);
    for (part, body, words) in [
        ("/tree/", "<html>sign in</html>", "sent an invalid response"),
        ("/tree/", "{}", "sent an invalid response"),
        ("/tree/", "[{\"type\": \"file\", \"path\": \"a\"}]", "did not report the size"),
        ("/tree/", "[{\"type\": \"file\", \"path\": \"a\", \"size\": -1}]", "sent an invalid response"),
        ("/tree/", "[{\"type\": \"file\", \"path\": \"a\", \"size\": 1, \"oid\": \"../x\"}]", "invalid entity tag"),
        ("/tree/", "[]", "no `model_index.json` and no weight file"),
        ("/revision/", "[", "sent an invalid response"),
        ("/revision/", "{\"sha\": \"../../x\"}", "../../x"),
    ] {
        let hub = Hub::start(small(), move |seen, _, reply| {
            if seen.path.contains(part) {
                *reply = Reply::json(body);
            }
        });
        let home = Home::new();
        Run::new(&mut home.download(&hub, &["4b"])).fails(1, &[words]);
        assert!(!home.path().join("hub").exists(), "{body}");
    }
}

#[test]
fn a_list_without_an_end_and_one_that_goes_on_elsewhere_are_refused() {
    let hub = Hub::start(small(), |seen, _, reply| {
        if seen.path.contains("/tree/") {
            let own = format!("<{}>; rel=\"next\"", seen.path);
            *reply = Reply::json("[]");
            reply.set("Link", &own);
        }
    });
    Run::new(&mut Home::new().download(&hub, &["4b"])).fails(1, &["is too long"]);
    let hub = Hub::start(small(), |seen, _, reply| {
        if seen.path.contains("/tree/") {
            reply.set("Link", "<https://elsewhere.example/list>; rel=\"next\"");
        }
    });
    Run::new(&mut Home::new().download(&hub, &["4b"])).fails(1, &["https://elsewhere.example/list"]);
}

#[test]
fn names_of_files_never_lead_out_of_the_folder() {
    for name in ["../../above", "/tmp/elsewhere", "vae/../../x", "a\\b", "a\u{1b}[31m", "a\u{202e}b", "", "a//b", "./a"]
    {
        let mut content = small();
        content.files.insert(name.to_string(), noise(2000, 5));
        let hub = Hub::start(content, fine);
        let home = Home::new();
        let before = names_in(home.path());
        let run = Run::new(&mut home.download(&hub, &["4b"])).fails(1, &["sent an invalid file name"]);
        assert!(!run.stderr.contains(['\u{1b}', '\u{202e}']), "{name}: {}", run.stderr);
        assert_eq!(names_in(home.path()), before, "{name}");
    }
    // The list of the shards is a file of the server, too.
    for name in ["../../above.safetensors", "/tmp/a.safetensors", "sub/a.safetensors", "a\u{1b}.safetensors"] {
        let mut content = small();
        content.files.remove(LARGE);
        let list = serde_json::json!({ "weight_map": { "one": name } }).to_string();
        content.files.insert(format!("{LARGE}.index.json"), list.into_bytes());
        let hub = Hub::start(content, fine);
        let run = Run::new(&mut Home::new().download(&hub, &["4b"])).fails(1, &["not a valid weight file"]);
        assert!(!run.stderr.contains('\u{1b}'), "{name}: {}", run.stderr);
    }
}

#[test]
fn command_lines_that_name_no_model_are_wrong_before_any_request() {
    let home = Home::new();
    let url = "http://127.0.0.1:9";
    Run::new(&mut home.download_from(url, &["5b"])).fails(2, &["unknown model: `5b`", "name 4b, 9b"]);
    Run::new(&mut home.download_from(url, &["4b", "a/b/c"])).fails(2, &["unknown model: `a/b/c`"]);
    Run::new(&mut home.download_from(url, &["4b:../x"])).fails(2, &["unknown model"]);
    Run::new(&mut home.download_from(url, &["4b", "9b", "--folder", "x"])).fails(2, &["--folder"]);
    Run::new(&mut home.download_from(url, &[])).fails(2, &["NAME"]);
}
