# Only the main process looks at the audio: a job on a cluster was started because of what it found.
if CFG.root.watch_audio and workflow.is_main_process:
    try:
        for name in CFG.splits():
            prepare_stage.mark_changed_audio(manifest(name))
    except RulesError as error:
        raise WorkflowError(str(error)) from None


rule prepare_split:
    input:
        sources=lambda wildcards: CFG.sources(wildcards.corpus, wildcards.split),
        changed=lambda wildcards: existing(prepare_stage.change_mark(manifest(f"{wildcards.corpus}/{wildcards.split}"))),
    output:
        manifest=MANIFEST,
        index=INDEX,
    log:
        f"{EXP}/logs/prepare/{{corpus}}-{{split}}.log",
    conda:
        ENV
    threads: workflow.cores or 1
    params:
        corpus=lambda wildcards: CFG.json(CFG.corpus_options(wildcards.corpus)),
        audio_dir=lambda wildcards, output: f"{DATA}/{wildcards.corpus}/audio",
        version=prepare_stage.VERSION,
        workers=lambda wildcards, threads: CFG.json({"workers": CFG.root.parallel.n_workers or threads}),
    shell:
        "espnet3-rules prepare --corpus {params.corpus:q} --split {wildcards.split:q} --out {output.manifest:q}"
        " --audio-dir {params.audio_dir:q} --options {params.workers:q} --log {log:q}"
