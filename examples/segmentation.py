# SPDX-License-Identifier: Apache-2.0
"""Makes pictures with a label for each pixel from Fashion-MNIST, without a network:
   python3 examples/segmentation.py scenes.npz [FOLDER OF FASHION-MNIST] [TRAINING PICTURES]
With a name that does not end in .npz, the same pictures as a folder of PNG files: train/images/0.png with the labels
train/masks/0.png, and so on, and test.

A picture is a canvas of 48 x 48 pixels with noise on it and three garments, at random places. A pixel's label is 0 on the
background, 1 + the garment's class where it shows, and 255 (no label) at a garment's edge, where its grey is faint."""
import gzip
import os
import struct
import sys
import zlib

try:
    import numpy as np
except ImportError:
    sys.exit('segmentation.py needs NumPy: apt-get install python3-numpy, and /usr/bin/python3, or pip install numpy')

SIDE, EACH, FAINT, CLEAR = 48, 3, 16, 64


def read_idx(path):
    opener = gzip.open if os.path.exists(path + '.gz') else open
    with opener(path + '.gz' if opener is gzip.open else path, 'rb') as f:
        data = f.read()
    dims = np.frombuffer(data, '>u4', data[3], 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(dims)


def paste(rng, pictures, labels):
    canvas = rng.integers(0, 24, (SIDE, SIDE), np.uint8)
    classes = np.zeros((SIDE, SIDE), np.uint8)
    for i in rng.integers(0, len(pictures), EACH):
        garment = pictures[i]
        y, x = rng.integers(0, SIDE - 28 + 1, 2)
        window = np.s_[y:y + 28, x:x + 28]
        shows, clear = garment > FAINT, garment > CLEAR
        canvas[window][shows] = garment[shows]
        classes[window][shows] = 255
        classes[window][clear] = labels[i] + 1
    return canvas, classes


def scenes(rng, folder, split, n):
    pictures = read_idx(os.path.join(folder, split + '-images-idx3-ubyte'))
    labels = read_idx(os.path.join(folder, split + '-labels-idx1-ubyte'))
    made = [paste(rng, pictures, labels) for _ in range(n)]
    return np.stack([x for x, _ in made])[:, None], np.stack([y for _, y in made])


def write_png(path, pixels):
    """Grey, 8 bits."""
    def chunk(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
    rows = b''.join(b'\0' + row.tobytes() for row in pixels)
    with open(path, 'wb') as f:
        f.write(b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>2I5B', pixels.shape[1], pixels.shape[0], 8, 0, 0, 0, 0)) +
                chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))


def write_folder(folder, x, y):
    for name, images in (('images', x[:, 0]), ('masks', y)):
        os.makedirs(os.path.join(folder, name))
        for i, pixels in enumerate(images):
            write_png(os.path.join(folder, name, f'{i:05}.png'), pixels)


def main():
    path = sys.argv[1]
    folder = sys.argv[2] if len(sys.argv) > 2 else '/usr/share/datasets/fashion-mnist'
    n = int(sys.argv[3]) if len(sys.argv) > 3 else 2000
    rng = np.random.default_rng(1)
    x_train, y_train = scenes(rng, folder, 'train', n)
    x_test, y_test = scenes(rng, folder, 't10k', max(n // 5, 1))
    if not path.endswith('.npz'):
        write_folder(os.path.join(path, 'train'), x_train, y_train)
        write_folder(os.path.join(path, 'test'), x_test, y_test)
        return
    np.savez_compressed(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


main()
