//! Fields without effect. If a client requests something with them, it gets a note. Fields that would change nothing
//! anyway, and values that clients always send, cause no note.

use serde_json::{Map, Value};

use crate::http::error::shown;

/// Max fields listed.
const MAX_NAMED: usize = 64;
/// Fields about files that the server does not write, and about samplers and models that it does not have.
const HARMLESS: [&str; 16] = [
    "send_images",
    "save_images",
    "do_not_save_samples",
    "do_not_save_grid",
    "override_settings_restore_afterwards",
    "force_task_id",
    "comments",
    "eta",
    "s_min_uncond",
    "s_churn",
    "s_tmin",
    "s_tmax",
    "s_noise",
    "image_cfg_scale",
    "mask_round",
    "disable_extra_networks",
];
/// Fields that depend on another field. If that one is set, it causes the note.
const PARTS: [(&str, &[&str]); 5] = [
    (
        "enable_hr",
        &[
            "hr_scale", "hr_upscaler", "hr_second_pass_steps", "hr_resize_x", "hr_resize_y", "hr_checkpoint_name",
            "hr_sampler_name", "hr_scheduler", "hr_prompt", "hr_negative_prompt", "hr_additional_modules", "hr_cfg",
            "hr_distilled_cfg", "denoising_strength",
        ],
    ),
    ("refiner_checkpoint", &["refiner_switch_at"]),
    ("subseed_strength", &["subseed"]),
    ("script_name", &["script_args"]),
    (
        "mask",
        &[
            "mask_blur",
            "mask_blur_x",
            "mask_blur_y",
            "inpainting_fill",
            "inpaint_full_res",
            "inpaint_full_res_padding",
            "inpainting_mask_invert",
        ],
    ),
];
/// Values that match the server's behavior, in addition to empty ones.
const USUAL: [(&str, &[&str]); 8] = [
    ("clip_skip", &["1"]),
    ("distilled_cfg_scale", &["3.5", "1"]),
    ("initial_noise_multiplier", &["1"]),
    ("override_settings.CLIP_stop_at_last_layers", &["1"]),
    ("override_settings.sd_vae", &["automatic", "none"]),
    ("override_settings.initial_noise_multiplier", &["1"]),
    ("override_settings.randn_source", &["cpu", "gpu"]),
    ("override_settings.sd_checkpoint_hash", &[]),
];

/// Returns the unread fields that request something. Settings are prefixed.
pub fn without_effect(mut fields: Map<String, Value>, settings: Map<String, Value>) -> Vec<String> {
    HARMLESS.iter().for_each(|name| drop(fields.remove(*name)));
    PARTS.iter().flat_map(|(_, parts)| *parts).for_each(|name| drop(fields.remove(*name)));
    let mut left = Vec::new();
    if let Some(Value::Object(scripts)) = fields.remove("alwayson_scripts") {
        let scripts = scripts.iter().filter(|(_, script)| !is_off(script.get("args").unwrap_or(script)));
        left.extend(scripts.map(|(name, _)| format!("alwayson_scripts.{}", shown(name))));
    }
    let settings = settings.into_iter().map(|(name, value)| (format!("override_settings.{name}"), value));
    let asked = fields.into_iter().chain(settings).filter(|(name, value)| !is_usual(name, value));
    left.extend(asked.map(|(name, value)| match &value {
        Value::String(text) if text.len() <= 80 => format!("{} `{}`", shown(&name), shown(text)),
        Value::Number(number) => format!("{} {number}", shown(&name)),
        _ => shown(&name),
    }));
    let more = left.len().saturating_sub(MAX_NAMED);
    left.truncate(MAX_NAMED);
    left.extend((more > 0).then(|| format!("and {more} more")));
    left
}

/// Takes the extension Dynamic Prompts from the scripts. Returns `true` if the request enables it.
pub fn dynamic_prompts(fields: &mut Map<String, Value>) -> bool {
    let Some(Value::Object(scripts)) = fields.get_mut("alwayson_scripts") else { return false };
    let is_meant = |name: &&String| name.to_lowercase().starts_with("dynamic prompts");
    let Some(script) = scripts.keys().find(is_meant).cloned().and_then(|name| scripts.remove(&name)) else {
        return false;
    };
    // The name carries a version. The first argument disables the extension.
    script["args"][0] != Value::Bool(false)
}

fn is_usual(name: &str, value: &Value) -> bool {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_lowercase);
    let is_number = |usual: &str| value.as_f64().is_some_and(|number| usual.parse() == Ok(number));
    let known = USUAL.iter().find(|(known, _)| *known == name);
    is_nothing(value) || known.is_some_and(|(_, usual)| usual.iter().any(|usual| *usual == text || is_number(usual)))
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64().is_some_and(|number| number == 0.0 || number == -1.0),
        Value::String(text) => matches!(&*text.trim().to_lowercase(), "" | "none"),
        Value::Array(values) => values.iter().all(is_nothing),
        Value::Object(values) => values.is_empty(),
        Value::Null => true,
    }
}

/// Returns `true` if the arguments of a script disable it: there are none, the first one is `false`, or all are off.
fn is_off(arguments: &Value) -> bool {
    match arguments {
        Value::Array(values) => values.first() == Some(&Value::Bool(false)) || values.iter().all(is_off),
        Value::Object(values) => {
            let is_false = |name: &&str| values.get(*name) == Some(&Value::Bool(false));
            let says = |name: &str| values.get(name).is_some_and(|value| !is_nothing(value));
            // A ControlNet unit does nothing without a preprocessor, a model or an image.
            let is_empty_unit = ["module", "model"].iter().any(|name| values.contains_key(*name));
            ["enabled", "enable", "is_enabled", "active"].iter().any(is_false)
                || values.values().all(is_nothing)
                || (is_empty_unit && !says("module") && !says("model") && !says("image") && !says("input_image"))
        }
        value => is_nothing(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn left(fields: Value, settings: Value) -> String {
        let object = |value: Value| value.as_object().unwrap().clone();
        without_effect(object(fields), object(settings)).join(", ")
    }

    #[test]
    fn what_was_asked_for_is_told() {
        for (fields, told) in [
            (json!({"enable_hr": true, "hr_scale": 2}), "enable_hr"),
            (json!({"restore_faces": true, "tiling": true}), "restore_faces, tiling"),
            (json!({"styles": ["ink"]}), "styles"),
            (json!({"subseed": 5, "subseed_strength": 0.5}), "subseed_strength 0.5"),
            (json!({"refiner_checkpoint": "r", "refiner_switch_at": 0.8}), "refiner_checkpoint `r`"),
            (json!({"script_name": "SD upscale", "script_args": [1]}), "script_name `SD upscale`"),
            (json!({"firstphase_width": 512}), "firstphase_width 512"),
            (json!({"clip_skip": 2}), "clip_skip 2"),
            (json!({"anything": {"a": 1}}), "anything"),
            (
                json!({"alwayson_scripts": {"ControlNet": {"args": [{"enabled": true, "module": "canny"}]}}}),
                "alwayson_scripts.ControlNet",
            ),
            (
                json!({"alwayson_scripts": {"ControlNet": {"args": [{"model": "canny", "image": "x"}]}}}),
                "alwayson_scripts.ControlNet",
            ),
            (
                json!({"alwayson_scripts": {"ADetailer": {"args": [true, false, {"ad_model": "face"}]}}}),
                "alwayson_scripts.ADetailer",
            ),
            (json!({"alwayson_scripts": {"x": {"args": ["a", 2]}}}), "alwayson_scripts.x"),
        ] {
            assert_eq!(left(fields.clone(), json!({})), told, "{fields}");
        }
        let settings = left(json!({}), json!({"sd_vae": "other.safetensors", "CLIP_stop_at_last_layers": 2}));
        assert!(settings.contains("override_settings.sd_vae `other.safetensors`"), "{settings}");
        assert!(settings.contains("override_settings.CLIP_stop_at_last_layers 2"), "{settings}");
        let long = Map::from_iter([("n".repeat(5000), "x".repeat(5000).into())]);
        let long = without_effect(long, Map::new()).join(", ");
        assert!(long.len() < 200, "{long}");
    }

    #[test]
    fn dynamic_prompts_are_on_unless_their_first_argument_says_otherwise() {
        for (scripts, expected) in [
            (json!({"Dynamic Prompts v2.17.1": {"args": [true, false]}}), true),
            (json!({"dynamic prompts v2": {}}), true),
            (json!({"Dynamic Prompts": {"args": []}}), true),
            (json!({"Dynamic Prompts v2.17.1": {"args": [false]}}), false),
            (json!({"ControlNet": {"args": [true]}}), false),
            (json!([1]), false),
        ] {
            let mut fields = json!({"alwayson_scripts": scripts.clone()}).as_object().unwrap().clone();
            assert_eq!(dynamic_prompts(&mut fields), expected, "{scripts}");
            let left = fields["alwayson_scripts"].as_object().map_or(1, Map::len);
            assert_eq!(left, usize::from(scripts.is_array() || scripts.get("ControlNet").is_some()));
        }
    }

    #[test]
    fn what_changes_nothing_is_not_told() {
        for fields in [
            json!({"eta": 0.5, "s_noise": 1.0, "s_churn": 3, "s_tmin": 1, "s_tmax": 2, "s_min_uncond": 0.1}),
            json!({"hr_scale": 2, "hr_upscaler": "Latent", "denoising_strength": 0.7, "enable_hr": false}),
            json!({"subseed": 7, "subseed_strength": 0, "seed_resize_from_w": -1, "seed_resize_from_h": 0}),
            json!({"script_name": "None", "script_args": [1], "styles": [], "restore_faces": false, "refiner_switch_at": 0.8}),
            json!({"clip_skip": 1, "distilled_cfg_scale": 3.5, "send_images": true, "save_images": true}),
            json!({"mask_blur": 4, "inpaint_full_res": true, "inpainting_fill": 1}),
            json!({"alwayson_scripts": {}}),
            json!({"alwayson_scripts": {"ControlNet": {"args": []}, "a": {}, "b": {"args": [false, {"x": 1}]}}}),
            json!({"alwayson_scripts": {"ControlNet": {"args": [{"enabled": false, "module": "canny", "image": "x"}]}}}),
            json!({"alwayson_scripts": {"controlnet": {"args": [{"module": "none", "model": "None", "weight": 1.0}]}}}),
        ] {
            assert_eq!(left(fields.clone(), json!({})), "", "{fields}");
        }
        let settings =
            json!({"CLIP_stop_at_last_layers": 1, "sd_vae": "Automatic", "forge_additional_modules": [], "x": false});
        assert_eq!(left(json!({}), settings), "");
    }
}
