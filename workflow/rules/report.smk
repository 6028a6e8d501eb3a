rule report:
    input:
        scores=[f"{experiment.folder_in(EXP)}/scores.json" for experiment in CFG.experiments()],
    output:
        table=f"{EXP}/results.md",
        csv=f"{EXP}/results.csv",
    log:
        f"{EXP}/logs/report.log",
    conda:
        ENV
    params:
        version=report_stage.VERSION,
    shell:
        "espnet3-rules report --scores {input.scores:q} --out {output.table:q} --log {log:q}"


# last, so that scores and results are there to explain what it refuses
rule gate:
    input:
        scores=[f"{experiment.folder_in(EXP)}/scores.json" for experiment in CFG.experiments()],
        table=f"{EXP}/results.md",
    output:
        f"{EXP}/gate.json",
    log:
        f"{EXP}/logs/gate.log",
    conda:
        ENV
    params:
        options=CFG.json(CFG.gate()),
        version=gate_stage.VERSION,
    shell:
        "espnet3-rules gate --scores {input.scores:q} --out {output:q} --options {params.options:q} --log {log:q}"
