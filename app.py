"""The demo: type a sentence and get pictures, give a picture and get captions, and see why.

    python app.py [--data DIR] [--model DIR] [--host 127.0.0.1] [--port 7860] [--share]

All of it is in `vse_demo/app`.
"""

from vse_demo import tune_process

if __name__ == "__main__":
    tune_process()  # before PyTorch is loaded
    from vse_demo.app.launch import main

    main()
