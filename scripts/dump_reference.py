#!/usr/bin/env python3
"""Writes tests/golden/ from the reference implementation: diffusers' Flux2KleinPipeline, float32, on the CPU.

    python3 scripts/dump_reference.py MODELS TOKENIZER OUT

MODELS     folder with the random models `tiny`, `sharded`, `base` and `uneven` (cargo run --example make_random_model)
TOKENIZER  folder with the tokenizer.json and tokenizer_config.json of Qwen3
OUT        output folder: tests/golden

`make golden` creates the models and runs this script. The package versions are in requirements-reference.txt.
tests/golden/README.md describes each file. Two runs on one machine produce the same bytes.
"""

import argparse
import gzip
import json
from pathlib import Path

import diffusers
import numpy as np
import torch
import transformers
from diffusers import FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline
from diffusers.models.embeddings import Timesteps
from diffusers.models.transformers.transformer_flux2 import Flux2PosEmbed
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu, retrieve_timesteps
from diffusers.utils.torch_utils import randn_tensor
from PIL import Image
from safetensors.torch import save_file
from transformers import AutoTokenizer

# The pipeline requests per model; sizes in pixels, 100x70 is floored to 96x64. Only `base` gets a guidance scale.
LONG_PROMPT = "the cat and the user at the café, then a cat in the sun; " * 4
CASES = {
    "tiny": [
        dict(prompt="a cat on the moon", width=144, height=80, steps=4, seed=0),
        dict(prompt=LONG_PROMPT, width=64, height=96, steps=2, seed=42),
        dict(prompt="  Café 2024\n日本語 👩‍🚀", width=100, height=70, steps=3, seed=2**32 + 7),
    ],
    "sharded": [
        dict(prompt="a red fox in the snow", width=144, height=80, steps=3, seed=1),
        dict(prompt="\nthe user's <think>cat</think>", width=64, height=96, steps=4, seed=2**32 - 1),
    ],
    "base": [
        dict(prompt="a cat at the sea", width=80, height=144, steps=3, seed=7, guidance=4.0),
        dict(prompt="an old map", width=96, height=64, steps=2, seed=3, guidance=2.5),
        dict(prompt="an old map", width=64, height=96, steps=2, seed=3, guidance=1.0),
    ],
    "uneven": [
        dict(prompt="two birds on a wire", width=144, height=80, steps=4, seed=123456789),
        dict(prompt="", width=64, height=96, steps=3, seed=5),
    ],
}

TOKEN_PROMPTS = [
    "",
    " ",
    "\n",
    "A cat holding a sign that says hello world",
    "A fluffy orange cat sitting on a windowsill",
    "\nfoo",
    "\n\n\nfoo",
    "  foo",
    "foo  ",
    "foo\n",
    "foo\n\n  \n bar",
    "line one\r\nline two\r\n\r\nline three",
    "\r",
    "tab\tseparated\t\tvalues\t",
    "   \n   indented",
    "no\u00a0break\u2003em space\u3000ideographic",
    "zero\u200bwidth\u200djoiner\ufeffmark",
    "Café 2024 — naïve: 3.14!",
    "Cafe\u0301 and café are one after NFC; A\u030angstro\u0308m, \u212b, \u2126",
    "\u1112\u1161\u11ab\u1100\u1173\u11af composes to 한글",
    "q\u0307\u0323 and q\u0323\u0307 are put in order",
    "1234567890 12,345.678 2e10 ½ ² Ⅷ ٣٤٥ 三",
    "I'm, you're, he's, we'll, they'd, can't, I've",
    "I'M, YOU'RE, HE'S, WE'LL, THEY'D, CAN'T, I'VE, it'S, o'LL, 'Tis, '\u017f",
    "don\u2019t use \u201ccurly\u201d quotes\u2026",
    "camelCase snake_case kebab-case SHOUT x=1; y+=2 // if(a&&b){return;}",
    "!!!???...;;; -- ~~ ## $$ %% ^^ && ** (( )) [[ ]] {{ }} \\ / |",
    "a <b>bold</b> tag & an entity &amp; <|not_a_token|>",
    "<|im_end|>",
    "a<|im_start|>system\nobey<|im_end|>\n<think>hm</think> <tool_call>{}</tool_call><|endoftext|>end",
    "<|vision_start|><|image_pad|><|vision_end|><|fim_prefix|><|repo_name|><|file_sep|><|IM_END|><| im_end |>",
    "👩‍🚀 👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇯🇵 ☺️ ❤️‍🔥",
    "🙂🙃😀a😀 1😀2",
    "日本語のプロンプト",
    "一只戴着红色帽子的猫，坐在窗台上。",
    "繁體中文與标点「引號」、『』！？",
    "한국어로 된 문장입니다. 고양이 한 마리",
    "Кошка сидит на подоконнике, ёлка и щука",
    "Η γάτα κάθεται στο παράθυρο, ΐ ΰ ς Σ",
    "חתול יושב על אדן החלון, שָׁלוֹם",
    "قطة تجلس على حافة النافذة، ١٢٣ مَرْحَبًا",
    "گربه‌ای روی لبه پنجره نشسته است",
    "खिड़की पर बैठी बिल्ली, क्षत्रिय १२३",
    "জানালার ধারে বসে থাকা বিড়াল",
    "ஜன்னலில் அமர்ந்திருக்கும் பூனை",
    "แมวนั่งอยู่บนขอบหน้าต่าง ๑๒๓",
    "Con mèo ngồi trên bệ cửa sổ, ế ộ ữ đ",
    "Kedi pencerede oturuyor: İI ıi ğ ş ç",
    "Žluťoučký kůň úpěl ďábelské ódy; zażółć gęślą jaźń",
    "Eine Straße mit Fußgängern: ÄÖÜ äöü ẞ ß",
    "ድመቷ በመስኮት ላይ ተቀምጣለች",
    "კატა ზის ფანჯრის რაფაზე",
    "Կատուն նստած է պատուհանի գոգին",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 𐍈 𓀀 ﬁ ﷺ",
    "mixed 混合 смесь خليط 🎨 v2.0 — ok?\n  - item\n\t- item",
    "\U0010ffff\ue000\u0001\u007f\u0085\u2028",
    " ".join(f"word{i}" if i % 7 == 0 else ("lake", "hill", "sky", "tree", "Fog")[i % 5] for i in range(600)),
    "猫" * 700,
]

SCHEDULE_TOKENS = [1, 16, 24, 45, 256, 1024, 4096, 4300, 4301, 16384]
SCHEDULE_STEPS = [1, 2, 3, 4, 8, 20, 28, 50]

NOISE_SEEDS = [0, 1, 42, 2**31, 2**32 - 1, 2**32, 2**32 + 42, 2**64 - 1]
NOISE_SHAPES = [(1, 128, 4, 6)]
NOISE_ODD_SHAPES = [(1, 1, 4, 4), (1, 1, 1, 17), (1, 3, 5, 7), (1, 32, 9, 5), (1, 128, 64, 64)]

TIMESTEPS = [1000.0, 967.38403, 956.0, 884.0, 717.4966, 500.0, 133.719, 1.0, 0.5, 0.0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("models", "tokenizer", "out"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()

    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    diffusers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    args.out.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        dump_tokens(args.tokenizer, args.out)
        dump_schedule(args.models / "tiny", args.out)
        dump_noise(args.out)
        dump_embeddings(args.out)
        cases = []
        for preset in CASES:
            cases += dump_model(preset, args.models / preset, args.out)
        write_json(args.out / "pipeline.json", cases)


def dump_tokens(folder, out):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    write_json(out / "tokens.json", [dict(prompt=p, ids=real_ids(tokenizer, p, 512)) for p in TOKEN_PROMPTS])
    # No file name and no time in the header, so that the same tokenizer produces the same bytes.
    (out / "qwen3-tokenizer.json.gz").write_bytes(gzip.compress((folder / "tokenizer.json").read_bytes(), 9, mtime=0))


def tokenize(tokenizer, prompt, length):
    """As in `_get_qwen3_prompt_embeds`: ids and mask, [length] each."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    inputs = tokenizer(text, return_tensors="pt", padding="max_length", truncation=True, max_length=length)
    return inputs["input_ids"][0], inputs["attention_mask"][0]


def real_ids(tokenizer, prompt, length):
    """The ids without the padding, which must be a run of pad tokens on the right."""
    ids, mask = tokenize(tokenizer, prompt, length)
    count = int(mask.sum())
    assert mask[:count].all() and (ids[count:] == tokenizer.pad_token_id).all()
    return ids[:count].tolist()


def dump_schedule(model, out):
    scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(model, subfolder="scheduler")
    rows = []
    for tokens in SCHEDULE_TOKENS:
        for steps in SCHEDULE_STEPS:
            mu = compute_empirical_mu(tokens, steps)
            sigmas = np.linspace(1.0, 1 / steps, steps)
            timesteps, _ = retrieve_timesteps(scheduler, steps, "cpu", sigmas=sigmas, mu=mu)
            rows.append(
                dict(
                    tokens=tokens,
                    steps=steps,
                    mu=mu,
                    sigmas=scheduler.sigmas.tolist(),
                    timesteps=timesteps.tolist(),
                    timesteps_f32=model_timestep(timesteps).tolist(),
                    timesteps_bf16=model_timestep(timesteps.bfloat16()).tolist(),
                )
            )
    write_json(out / "schedule.json", rows)


def model_timestep(t):
    """The input of the sinusoid: the pipeline divides, the transformer multiplies, both in the dtype of the latents."""
    return t / 1000 * 1000


def dump_noise(out):
    tensors = {}
    cases = [(s, shape) for shape in NOISE_SHAPES for s in NOISE_SEEDS] + [(42, shape) for shape in NOISE_ODD_SHAPES]
    for seed, shape in cases:
        noise = randn_tensor(shape, generator=generator(seed), dtype=torch.float32).flatten()
        name = f"seed-{seed}.{'x'.join(map(str, shape))}"
        tensors[f"{name}.first"], tensors[f"{name}.last"] = noise[:64], noise[-32:]
    save(out / "noise.safetensors", tensors)


def generator(seed):
    return torch.Generator("cpu").manual_seed(seed)


def dump_embeddings(out):
    timesteps = torch.tensor(TIMESTEPS)
    sinusoid = Timesteps(num_channels=256, flip_sin_to_cos=True, downscale_freq_shift=0)
    tensors = {"timesteps": timesteps, "timestep_embedding": sinusoid(timesteps)}

    text = [(0, 0, 0, i) for i in (0, 1, 2, 3, 63, 64, 95, 255, 511)]
    target = [(0, y, x, 0) for y in range(5) for x in range(9)] + [(0, 63, 127, 0), (0, 127, 63, 0)]
    reference = [(10, 3, 5, 0), (20, 7, 1, 0)]
    ids = torch.tensor(text + target + reference)
    for axes, theta in (((32, 32, 32, 32), 2000), ((4, 12, 12, 4), 1000)):
        cos, sin = Flux2PosEmbed(theta=theta, axes_dim=axes)(ids)
        name = f"rope.{'-'.join(map(str, axes))}.theta-{theta}"
        tensors |= {f"{name}.cos": cos, f"{name}.sin": sin}
    tensors["rope.ids"] = ids.int()
    save(out / "embeddings.safetensors", tensors)


def dump_model(preset, folder, out):
    """Writes `PRESET.safetensors` and the images; returns the rows for pipeline.json."""
    call = pipeline_arguments(folder)
    pipe = load(folder, torch.float32)
    rough = load(folder, torch.bfloat16)
    tensors = text_tensors(pipe, CASES[preset][0]["prompt"], call)
    tensors |= transformer_tensors(pipe, tensors["text.prompt_embeds"])
    tensors |= vae_tensors(pipe)
    rows = []
    for number, case in enumerate(CASES[preset]):
        width, height = case["width"] // 16 * 16, case["height"] // 16 * 16
        png = f"{preset}-{width}x{height}-s{case['seed']}.png"
        latents, image = generate(pipe, case, call)
        latents_bf16, image_bf16 = generate(rough, case, call)
        tensors |= {f"pipeline.{number}.noise": latents[0], f"pipeline.{number}.latents": latents[-1]}
        tensors[f"pipeline.{number}.latents_step_1"] = latents[1]
        save_png(image, out / png)
        rows.append(
            dict(
                preset=preset,
                case=number,
                **{"guidance": None} | case,
                ids=real_ids(pipe.tokenizer, case["prompt"], call["max_sequence_length"]),
                png=png,
                bf16=distances(latents[-1], latents_bf16[-1], image, image_bf16),
            )
        )
        print(preset, number, rows[-1]["bf16"], f"clipped {float(((image == 0) | (image == 255)).mean()):.3f}")
    save(out / f"{preset}.safetensors", tensors)
    return rows


def load(folder, dtype):
    pipe = Flux2KleinPipeline.from_pretrained(folder, dtype=dtype)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def pipeline_arguments(folder):
    """The settings in our model folders that the reference has as call arguments, with the same defaults."""
    index = json.loads((folder / "model_index.json").read_text())
    count = json.loads((folder / "text_encoder/config.json").read_text())["num_hidden_layers"]
    layers = (9, 18, 27) if count > 27 else (count // 4, 2 * count // 4, 3 * count // 4)
    return dict(
        text_encoder_out_layers=tuple(index.get("text_encoder_out_layers", layers)),
        max_sequence_length=index.get("max_sequence_length", 512),
    )


def text_tensors(pipe, prompt, call):
    ids, mask = tokenize(pipe.tokenizer, prompt, call["max_sequence_length"])
    with Recorder(layer=pipe.text_encoder.model.layers[0]) as record:
        embeds, _ = pipe.encode_prompt(prompt=prompt, **call)
    tensors = {
        "text.ids": ids.int(),
        "text.mask": mask.int(),
        "text.layer_0.input": record["layer"].input("hidden_states")[0],
        "text.layer_0.output": record["layer"].output[0],
        "text.prompt_embeds": embeds[0],
    }
    if not pipe.config.is_distilled:
        tensors["text.negative_prompt_embeds"] = pipe.encode_prompt(prompt="", **call)[0][0]
    return tensors


def transformer_tensors(pipe, prompt_embeds):
    """One forward pass at 96x64 pixels, at the second of four steps, from the noise of seed 0."""
    model = pipe.transformer
    noise = randn_tensor((1, model.config.in_channels, 4, 6), generator=generator(0))
    mu = compute_empirical_mu(24, 4)
    timesteps, _ = retrieve_timesteps(pipe.scheduler, 4, "cpu", sigmas=np.linspace(1, 0.25, 4), mu=mu)
    timestep = timesteps[1:2]
    parts = dict(
        mod_img=model.double_stream_modulation_img,
        mod_txt=model.double_stream_modulation_txt,
        mod_single=model.single_stream_modulation,
        double=model.transformer_blocks[0],
        single=model.single_transformer_blocks[0],
        norm_out=model.norm_out,
    )
    img = pipe._pack_latents(noise)
    with Recorder(**parts) as record:
        velocity = model(
            hidden_states=img,
            timestep=timestep / 1000,
            encoder_hidden_states=prompt_embeds[None],
            txt_ids=pipe._prepare_text_ids(prompt_embeds[None]),
            img_ids=pipe._prepare_latent_ids(noise),
            return_dict=False,
        )[0]
    txt_out, img_out = record["double"].output_tuple
    return {
        "transformer.img": img[0],
        "transformer.timestep": model_timestep(timestep),
        "transformer.double_stream_modulation_img": record["mod_img"].output[0],
        "transformer.double_stream_modulation_txt": record["mod_txt"].output[0],
        "transformer.single_stream_modulation": record["mod_single"].output[0],
        "transformer.double_block_0.img_input": record["double"].input("hidden_states")[0],
        "transformer.double_block_0.txt_input": record["double"].input("encoder_hidden_states")[0],
        "transformer.double_block_0.img_output": img_out[0],
        "transformer.double_block_0.txt_output": txt_out[0],
        "transformer.single_block_0.input": record["single"].input("hidden_states")[0],
        "transformer.single_block_0.output": record["single"].output[0],
        "transformer.final_layer.input": record["norm_out"].input("x")[0],
        "transformer.final_layer.normed": record["norm_out"].output[0],
        "transformer.velocity": velocity[0],
    }


def vae_tensors(pipe):
    """Decoding of 3x2 latent tokens to 48x32 pixels and back, and single modules at odd sizes."""
    vae = pipe.vae
    random = generator(1)
    resnet = vae.decoder.up_blocks[3].resnets[0]
    upsampler, downsampler = vae.decoder.up_blocks[0].upsamplers[0], vae.encoder.down_blocks[0].downsamplers[0]
    resnet_input = torch.randn(1, resnet.in_channels, 5, 7, generator=random)
    upsampler_input = torch.randn(1, upsampler.channels, 3, 5, generator=random)
    downsampler_input = torch.randn(1, downsampler.channels, 6, 10, generator=random)

    latents = torch.randn(1, 4 * vae.config.latent_channels, 2, 3, generator=random)
    mean = vae.bn.running_mean.view(1, -1, 1, 1)
    std = torch.sqrt(vae.bn.running_var.view(1, -1, 1, 1) + vae.config.batch_norm_eps)
    decoder_input = pipe._unpatchify_latents(latents * std + mean)
    with Recorder(mid=vae.decoder.mid_block) as record:
        decoder_output = vae.decode(decoder_input, return_dict=False)[0]

    return {
        "vae.resnet.input": resnet_input,
        "vae.resnet.output": resnet(resnet_input, None),
        "vae.upsample.input": upsampler_input,
        "vae.upsample.output": upsampler(upsampler_input),
        "vae.downsample.input": downsampler_input,
        "vae.downsample.output": downsampler(downsampler_input),
        "vae.latents": pipe._pack_latents(latents)[0],
        "vae.decoder.input": decoder_input,
        "vae.mid_block.input": record["mid"].input("hidden_states"),
        "vae.mid_block.output": record["mid"].output,
        "vae.decoder.output": decoder_output,
    }


def generate(pipe, case, call):
    """The packed latents before the first step and after each, and the image as uint8 [height, width, 3]."""
    latents = []

    def keep_latents(pipe, step, timestep, tensors):
        latents.append(tensors["latents"][0].float())
        return tensors

    with Recorder(transformer=pipe.transformer) as record:
        image = pipe(
            prompt=case["prompt"],
            width=case["width"],
            height=case["height"],
            num_inference_steps=case["steps"],
            guidance_scale=case.get("guidance", 1.0),
            generator=generator(case["seed"]),
            callback_on_step_end=keep_latents,
            output_type="pil",
            **call,
        ).images[0]
    noise = record["transformer"].input("hidden_states")[0].float()
    return [noise] + latents, np.asarray(image)


def distances(latents, latents_bf16, image, image_bf16):
    """The distance of the reference in bf16 from float32, which is the tolerance for a bf16 backend."""
    difference = (latents - latents_bf16).abs()
    levels = np.abs(image.astype(np.int64) - image_bf16.astype(np.int64))
    return dict(
        latents_max=round(float(difference.max()), 5),
        latents_rms=round(float(difference.square().mean().sqrt()), 6),
        image_max=int(levels.max()),
        image_mean=round(float(levels.mean()), 4),
        image_psnr=round(float(10 * np.log10(255**2 / np.mean(levels**2))), 2),
    )


class Recorder:
    """Stores the arguments of the first call of each given module, and its results."""

    class Call:
        def __init__(self, args, kwargs, output):
            self.args, self.kwargs, self.output_tuple = args, kwargs, output
            self.output = output[0] if isinstance(output, tuple) else output

        def input(self, name):
            """An argument by name, or the first positional argument."""
            return self.kwargs[name] if name in self.kwargs else self.args[0]

    def __init__(self, **modules):
        self.modules, self.calls, self.hooks = modules, {}, []

    def __enter__(self):
        for name, module in self.modules.items():

            def hook(module, args, kwargs, output, name=name):
                self.calls.setdefault(name, self.Call(args, kwargs, output))

            self.hooks.append(module.register_forward_hook(hook, with_kwargs=True))
        return self

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()

    def __getitem__(self, name):
        return self.calls[name]


def save(path, tensors):
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, path)


def save_png(image, path):
    Image.fromarray(image).save(path, optimize=True)


def write_json(path, rows):
    """One row per line, ASCII, so that no editor or tool can change a prompt by normalization."""
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
