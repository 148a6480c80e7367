# The demo in a container:  docker build -t vse-demo . && docker run -p 7860:7860 vse-demo
# Your own pictures:        docker run -p 7860:7860 -v ~/photos:/data:ro -v vse-cache:/cache vse-demo --data /data
FROM python:3.11-slim

ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 VSE_DEMO_CACHE=/cache GRADIO_SERVER_NAME=0.0.0.0 HF_HUB_OFFLINE=1
WORKDIR /app

# PyTorch for CPUs first: the default wheels bring 5 GB of CUDA libraries. An extra index: of one version pip takes the one
# marked "+cpu", and what PyTorch needs is on PyPI in the versions of constraints.txt
COPY constraints.txt .
RUN pip install --constraint constraints.txt torch torchvision --extra-index-url https://download.pytorch.org/whl/cpu

COPY pyproject.toml setup.py README.md LICENSE NOTICE app.py ./
COPY vse_demo vse_demo
COPY assets assets
COPY notebooks notebooks
RUN pip install --constraint constraints.txt ".[app]" \
    && useradd --create-home demo && mkdir /cache && chown demo /cache

USER demo
EXPOSE 7860
HEALTHCHECK --interval=30s --start-period=60s \
    CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:7860/gradio_api/app_id')"
ENTRYPOINT ["vse-demo", "app", "--port", "7860"]
