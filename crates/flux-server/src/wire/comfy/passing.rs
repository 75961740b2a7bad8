//! Node classes that pass on their inputs: values, switches, and nodes without effect.
//!
//! Source: ComfyUI's comfy_extras/nodes_primitive.py, nodes_logic.py, nodes_flux.py, nodes_cfg.py, nodes_easycache.py,
//! nodes_differential_diffusion.py and nodes_torch_compile.py; rgthree-comfy, ComfyUI-Impact-Pack, ComfyUI-KJNodes,
//! ComfyUI-Easy-Use, ComfyUI-Crystools and ComfyUI_Comfyroll_CustomNodes for those of other names.

use super::classes::{
    Action, CLIP, CONDITIONING, Class, IMAGE, Input, LATENT, MODEL, Switch, Takes, VAE, class, hint, input, link,
    number, optional, text, whole,
};
use super::kinds::Kind;

const WHOLE: (Kind, &str) = (Kind::Whole, "INT");
const NUMBER: (Kind, &str) = (Kind::Number, "FLOAT");
const TEXT: (Kind, &str) = (Kind::Text, "STRING");
const FLAG: (Kind, &str) = (Kind::Flag, "BOOLEAN");
const ANY: (Kind, &str) = (Kind::Any, "*");

const WHOLE_VALUE: &[Input] = &[whole("value", [0, 0, u64::MAX])];
const NUMBER_VALUE: &[Input] = &[number("value", [0.0, -1e15, 1e15])];
const TEXT_VALUE: &[Input] = &[text("value", "")];
const FLAG_VALUE: &[Input] = &[input("value", Takes::Flag(false))];
const SEED: &[Input] = &[whole("seed", [0, 0, u64::MAX])];
const LINKED_MODEL: &[Input] = &[link("model", Kind::Model)];
const ANYTHING: &[Input] = &[optional("anything", Takes::Link(Kind::Any))];

const COMPUTED: &str = "no effect: the server decides how models are computed";
const MEMORY: &str = "no effect: the server manages its memory itself";

/// Returns a class whose outputs are its inputs.
const fn passes(
    name: &'static str,
    inputs: &'static [Input],
    outputs: &'static [(Kind, &'static str)],
    passed: &'static [&'static str],
    note: Option<&'static str>,
) -> Class {
    Class { action: Action::Pass { inputs: passed, note }, ..class(name, "utils", inputs, outputs) }
}

/// Returns a class that holds a value.
const fn value(
    name: &'static str,
    inputs: &'static [Input],
    output: &'static [(Kind, &'static str)],
    passed: &'static [&'static str],
) -> Class {
    passes(name, inputs, output, passed, None)
}

/// Returns a class that changes how a model is computed.
const fn computes(name: &'static str) -> Class {
    passes(name, LINKED_MODEL, &[MODEL], &["model"], Some(COMPUTED))
}

/// Returns a class that frees memory.
const fn frees(name: &'static str) -> Class {
    passes(name, ANYTHING, &[ANY], &["anything"], Some(MEMORY))
}

const fn switch(
    name: &'static str,
    inputs: &'static [Input],
    outputs: &'static [(Kind, &'static str)],
    switch: Switch,
) -> Class {
    Class { action: Action::Switch(switch), ..class(name, "utils/logic", inputs, outputs) }
}

const fn any(name: &'static str) -> Input {
    optional(name, Takes::Link(Kind::Any))
}

const fn flag(name: &'static str) -> Input {
    optional(name, Takes::Flag(false))
}

const fn by_flag(by: &'static str) -> Switch {
    Switch::Flag { by, on_true: "on_true", on_false: "on_false" }
}

/// Returns a switch from Comfyroll, whose `Input` is 1 or 2.
const fn one_of_two(
    name: &'static str,
    inputs: &'static [Input],
    outputs: &'static [(Kind, &'static str)],
    prefix: &'static str,
) -> Class {
    switch(name, inputs, outputs, Switch::Number { by: "Input", prefix })
}

const ONE_OR_TWO: Input = whole("Input", [1, 1, 2]);

pub const PASSING: &[Class] = &[
    value("PrimitiveInt", WHOLE_VALUE, &[WHOLE], &["value"]),
    value("PrimitiveFloat", NUMBER_VALUE, &[NUMBER], &["value"]),
    value("PrimitiveString", TEXT_VALUE, &[TEXT], &["value"]),
    value("PrimitiveStringMultiline", TEXT_VALUE, &[TEXT], &["value"]),
    value("PrimitiveBoolean", FLAG_VALUE, &[FLAG], &["value"]),
    value("PrimitiveNode", &[any("value")], &[ANY], &["value"]),
    value("INTConstant", WHOLE_VALUE, &[WHOLE], &["value"]),
    value("FloatConstant", NUMBER_VALUE, &[NUMBER], &["value"]),
    value("StringConstant", &[text("string", "")], &[TEXT], &["string"]),
    value("StringConstantMultiline", &[text("string", "")], &[TEXT], &["string"]),
    value("easy int", WHOLE_VALUE, &[WHOLE], &["value"]),
    value("easy float", NUMBER_VALUE, &[NUMBER], &["value"]),
    value("easy string", TEXT_VALUE, &[TEXT], &["value"]),
    value("easy boolean", FLAG_VALUE, &[FLAG], &["value"]),
    value("easy seed", SEED, &[WHOLE], &["seed"]),
    value("Seed (rgthree)", SEED, &[WHOLE], &["seed"]),
    value("CR Text", &[text("text", "")], &[TEXT], &["text"]),
    value("Text Multiline", &[text("text", "")], &[TEXT], &["text"]),
    passes("PreviewAny", &[any("source")], &[TEXT], &["source"], None),
    passes("Note", &[], &[], &[], None),
    passes("MarkdownNote", &[], &[], &[], None),
    passes(
        "FluxGuidance",
        &[link("conditioning", Kind::Conditioning), number("guidance", [3.5, 0.0, 100.0])],
        &[CONDITIONING],
        &["conditioning"],
        Some("`guidance` has no effect: these models do not use it"),
    ),
    passes(
        "FluxKontextMultiReferenceLatentMethod",
        &[
            link("conditioning", Kind::Conditioning),
            hint("reference_latents_method", &["index", "offset", "uxo/uno", "index_timestep_zero"]),
        ],
        &[CONDITIONING],
        &["conditioning"],
        Some("no effect: references are numbered, as in training (`index`)"),
    ),
    passes(
        "DifferentialDiffusion",
        &[link("model", Kind::Model), optional("strength", Takes::Number(1.0, 0.0, 1.0))],
        &[MODEL],
        &["model"],
        Some("no effect: the mask is the same at each step"),
    ),
    passes(
        "CFGNorm",
        &[link("model", Kind::Model), number("strength", [1.0, 0.0, 100.0])],
        &[MODEL],
        &["model"],
        Some("no effect: guidance is not normalized"),
    ),
    passes("CFGZeroStar", LINKED_MODEL, &[MODEL], &["model"], Some("no effect: guidance is applied as in training")),
    passes(
        "FluxKVCache",
        LINKED_MODEL,
        &[MODEL],
        &["model"],
        Some("no effect: the server's settings decide whether keys and values of references are cached"),
    ),
    computes("PathchSageAttentionKJ"),
    computes("TorchCompileModel"),
    computes("TorchCompileModelFluxAdvanced"),
    computes("TorchCompileModelFluxAdvancedV2"),
    computes("TorchCompileModelAdvanced"),
    computes("ModelPatchTorchSettings"),
    computes("PatchModelPatcherOrder"),
    computes("EasyCache"),
    computes("LazyCache"),
    computes("TeaCache"),
    computes("ApplyFBCacheOnModel"),
    frees("easy cleanGpuUsed"),
    frees("easy clearCacheAll"),
    frees("easy clearCacheKey"),
    frees("easy showAnything"),
    frees("LayerUtility: PurgeVRAM"),
    frees("LayerUtility: PurgeVRAM V2"),
    frees("VRAMCleanup"),
    frees("RAMCleanup"),
    passes("UnloadAllModels", &[any("value")], &[ANY], &["value"], Some(MEMORY)),
    passes("UnloadModel", &[any("value"), any("model")], &[ANY], &["value"], Some(MEMORY)),
    passes("FreeMemoryImage", &[link("image", Kind::Image)], &[IMAGE], &["image"], Some(MEMORY)),
    passes("FreeMemoryLatent", &[link("latent", Kind::Latent)], &[LATENT], &["latent"], Some(MEMORY)),
    passes("FreeMemoryModel", LINKED_MODEL, &[MODEL], &["model"], Some(MEMORY)),
    passes("FreeMemoryCLIP", &[link("clip", Kind::Clip)], &[CLIP], &["clip"], Some(MEMORY)),
    passes(
        "VRAM_Debug",
        &[any("any_input"), any("image_pass"), any("model_pass")],
        &[(Kind::Any, "any_output"), (Kind::Any, "image_pass"), (Kind::Any, "model_pass")],
        &["any_input", "image_pass", "model_pass"],
        Some(MEMORY),
    ),
    switch("Reroute", &[any(""), any("value"), any("input"), any("any"), any("*")], &[ANY], Switch::First),
    switch(
        "Any Switch (rgthree)",
        &[
            any("any_01"),
            any("any_02"),
            any("any_03"),
            any("any_04"),
            any("any_05"),
            any("any_06"),
            any("any_07"),
            any("any_08"),
            any("any_09"),
            any("any_10"),
        ],
        &[ANY],
        Switch::First,
    ),
    switch("ComfySwitchNode", BY_SWITCH, &[ANY], by_flag("switch")),
    switch("LazySwitchKJ", BY_SWITCH, &[ANY], by_flag("switch")),
    switch("easy ifElse", BY_BOOLEAN, &[ANY], by_flag("boolean")),
    switch("Switch any [Crystools]", BY_BOOLEAN, &[ANY], by_flag("boolean")),
    switch("Switch any", BY_BOOLEAN, &[ANY], by_flag("boolean")),
    switch(
        "ImpactConditionalBranch",
        &[flag("cond"), any("tt_value"), any("ff_value")],
        &[ANY],
        Switch::Flag { by: "cond", on_true: "tt_value", on_false: "ff_value" },
    ),
    switch(
        "ImpactSwitch",
        &[
            whole("select", [1, 1, 10]),
            optional("sel_mode", Takes::Flag(false)),
            any("input1"),
            any("input2"),
            any("input3"),
            any("input4"),
            any("input5"),
            any("input6"),
            any("input7"),
            any("input8"),
            any("input9"),
            any("input10"),
        ],
        &[(Kind::Any, "selected_value"), (Kind::Text, "selected_label"), (Kind::Whole, "selected_index")],
        Switch::Number { by: "select", prefix: "input" },
    ),
    switch(
        "easy anythingIndexSwitch",
        &[
            whole("index", [0, 0, 9]),
            any("value0"),
            any("value1"),
            any("value2"),
            any("value3"),
            any("value4"),
            any("value5"),
            any("value6"),
            any("value7"),
            any("value8"),
            any("value9"),
        ],
        &[ANY],
        Switch::Number { by: "index", prefix: "value" },
    ),
    one_of_two("CR Image Input Switch", &[ONE_OR_TWO, any("image1"), any("image2")], &[IMAGE], "image"),
    one_of_two("CR Latent Input Switch", &[ONE_OR_TWO, any("latent1"), any("latent2")], &[LATENT], "latent"),
    one_of_two(
        "CR Conditioning Input Switch",
        &[ONE_OR_TWO, any("conditioning1"), any("conditioning2")],
        &[CONDITIONING],
        "conditioning",
    ),
    one_of_two("CR Model Input Switch", &[ONE_OR_TWO, any("model1"), any("model2")], &[MODEL], "model"),
    one_of_two("CR Clip Input Switch", &[ONE_OR_TWO, any("clip1"), any("clip2")], &[CLIP], "clip"),
    one_of_two("CR VAE Input Switch", &[ONE_OR_TWO, any("VAE1"), any("VAE2")], &[VAE], "VAE"),
    one_of_two("CR Text Input Switch", &[ONE_OR_TWO, any("text1"), any("text2")], &[TEXT], "text"),
];

const BY_SWITCH: &[Input] = &[flag("switch"), any("on_false"), any("on_true")];
const BY_BOOLEAN: &[Input] = &[flag("boolean"), any("on_true"), any("on_false")];
