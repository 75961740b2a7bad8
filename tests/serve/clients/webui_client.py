"""What webuiapi asks for, and what it must get. Usage: webui_client.py PORT"""

import sys

import webuiapi

api = webuiapi.WebUIApi(host="127.0.0.1", port=int(sys.argv[1]))
result = api.txt2img(prompt="a red circle", seed=5, width=64, height=64)
assert result.image.size == (64, 64) and result.info["seed"] == 5, result.info
again = api.txt2img(prompt="a red circle", seed=5, width=64, height=64, steps=4)
assert result.image.tobytes() == again.image.tobytes()
changed = api.img2img(images=[result.image], prompt="a blue circle", seed=6, width=64, height=64, denoising_strength=0.8)
assert changed.image.size == (64, 64)
masked = api.img2img(images=[result.image], mask_image=result.image.convert("L"), prompt="x", seed=6, width=64, height=64)
assert masked.image.size == (64, 64)
resized = api.img2img(images=[result.image], prompt="x", seed=6, width=128, height=64, denoising_strength=0.8)
assert resized.image.size == (128, 64), resized.image.size
small = result.image.convert("L").resize((32, 32))
assert api.img2img(images=[result.image], mask_image=small, prompt="x", seed=6, width=64, height=64).image.size == (64, 64)
told = api.txt2img(prompt="x", width=64, height=64, enable_hr=True, sampler_name="DPM++ 2M")
assert "hr_upscaler" in str(told.info["notes"]) and "dpm++ 2m" in str(told.info["notes"]), told.info
assert len(api.txt2img(prompt="x", width=64, height=64, batch_size=2, n_iter=2).images) == 4
assert api.get_options()["sd_model_checkpoint"] == "tiny"
api.set_options({"sd_model_checkpoint": "tiny"})
assert api.util_get_model_names() == ["tiny"] and api.util_get_current_model() == "tiny"
for listed in [api.get_samplers(), api.get_sd_models(), api.get_upscalers(), api.get_loras(), api.get_sd_vae()]:
    assert isinstance(listed, list), listed
assert api.get_progress()["progress"] == 0
api.interrupt()
api.skip()
api.refresh_checkpoints()
assert "Seed: 5" in api.png_info(result.image).info or result.image.info
print(f"webuiapi {webuiapi.__version__ if hasattr(webuiapi, '__version__') else ''}: all as it should be")
