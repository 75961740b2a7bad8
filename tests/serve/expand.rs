//! Templates: prompts that the server expands if a request or a client of A1111 says so.

use flux::metadata::said_by;
use serde_json::json;

use super::*;

/// Returns the prompt and the template in an image.
fn words(file: &[u8]) -> (String, Value) {
    let recipe: Value = serde_json::from_str(&said_by(file).unwrap().recipe.unwrap()).unwrap();
    (recipe["recipe"]["prompt"].as_str().unwrap().to_string(), recipe["recipe"]["template"].clone())
}

#[test]
fn a_request_is_expanded_if_it_says_so() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("animal.txt"), "cat\ndog\nfox\n").unwrap();
    let serving = Serving::start(&["--wildcards", folder.path().to_str().unwrap(), "--sdapi-expand"]);
    let template = "a {red|blue|green} __animal__";
    let request = json!({"prompt": template, "size": "64x64", "steps": 1, "seed": 5, "n": 4, "expand": true});
    let generate = |more: Value| serving.post("/v1/images/generations", &with(request.clone(), more));
    let reply = generate(json!({}));
    let drawn: Vec<_> = images(&reply).iter().map(|file| words(file)).collect();
    let prompts: Vec<_> = drawn.iter().map(|(prompt, _)| prompt.as_str()).collect();
    assert!(drawn.iter().all(|(_, own)| own == template) && prompts.iter().any(|prompt| *prompt != prompts[0]));
    let revised: Vec<_> =
        reply.json()["data"].as_array().unwrap().iter().map(|x| x["revised_prompt"].clone()).collect();
    assert_eq!(revised, prompts);
    let same = words(&images(&generate(json!({"seed": 6, "n": 1})))[0]).0;
    assert_eq!(same, prompts[1], "each seed has its words");
    let held = images(&generate(json!({"expand_seed": 6})));
    assert!(held.iter().all(|file| words(file).0 == prompts[1]));
    let plain = generate(json!({"expand": false, "n": 1}));
    assert_eq!(words(&images(&plain)[0]), (template.to_string(), Value::Null));
    assert!(plain.json()["data"][0]["revised_prompt"].is_null());

    for (prompt, told) in [
        ("__animals__", "`__animal__`?"),
        ("__../secret__", ""),
        ("a {red|blue", "column 3 "),
        (&"{a|b}".repeat(1001), "1000 options"),
    ] {
        let reply = generate(json!({"prompt": prompt, "n": 1}));
        let message = reply.json()["error"]["message"].as_str().unwrap_or_default().to_string();
        if told.is_empty() {
            assert_eq!(reply.status, 200, "{message}");
        } else {
            assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("prompt")), "{message}");
            assert!(message.contains(told), "{message}");
        }
    }

    let a1111 = |more: Value| {
        let body = json!({"prompt": template, "width": 64, "height": 64, "steps": 1, "seed": 5, "batch_size": 2});
        let reply = serving.post("/sdapi/v1/txt2img", &with(body, more));
        serde_json::from_str::<Value>(reply.json()["info"].as_str().unwrap()).unwrap()
    };
    assert_eq!(a1111(json!({}))["all_prompts"], json!([template, template]));
    let on = json!({"alwayson_scripts": {"Dynamic Prompts v2.17.1": {"args": [true, false]}}});
    let info = a1111(on.clone());
    assert_eq!(info["all_prompts"], json!(prompts[..2]));
    assert!(!info["notes"].to_string().contains("Dynamic"), "{info}");
    assert!(info["infotexts"][0].as_str().unwrap().contains("Template: "), "{info}");

    let without = Serving::start(&[]);
    let body = with(json!({"prompt": "{red|blue}", "width": 64, "height": 64, "steps": 1}), on);
    let info = without.post("/sdapi/v1/txt2img", &body).json()["info"].as_str().unwrap().to_string();
    assert!(info.contains("alwayson_scripts.Dynamic Prompts"), "{info}");
    let reply = without.post("/v1/images/generations", &request);
    assert_eq!(reply.status, 400, "it has no folder");
}

#[test]
fn a_job_of_a_recipe_keeps_its_words_or_gets_new_ones() {
    let serving = Serving::start(&[]);
    let recipe = json!({"prompt": "a red cat", "template": "a {red|blue} cat", "seed": 5, "width": 64, "height": 64, "steps": 1});
    let job = |more: Value| {
        let id = serving.post("/v1/jobs", &with(json!({"recipe": recipe}), more)).json()["id"].clone();
        let path = format!("/v1/jobs/{}", id.as_str().unwrap());
        until("done", || serving.get(&path).json()["status"] == "done");
        words(&serving.get(&format!("{path}/images/0")).body)
    };
    assert_eq!(job(json!({})), ("a red cat".to_string(), "a {red|blue} cat".into()));
    let expanded: std::collections::BTreeSet<_> = (1..8)
        .map(|seed| job(json!({"recipe": with(recipe.clone(), json!({"seed": seed})), "expand": true})).0)
        .collect();
    assert_eq!(expanded.into_iter().collect::<Vec<_>>(), ["a blue cat", "a red cat"]);
}
