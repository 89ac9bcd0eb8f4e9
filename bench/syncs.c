/* Counts fsync and fdatasync of a process and its children in the file that SYNCS names, at its beginning; and has each
   take SYNC_DELAY_US longer, as on a slower disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static long *count;
static struct timespec delay;

__attribute__((constructor)) static void begin(void) {
  const char *delay_us = getenv("SYNC_DELAY_US");
  long us = delay_us ? atol(delay_us) : 0;
  delay = (struct timespec){us / 1000000, us % 1000000 * 1000};
  const char *path = getenv("SYNCS");
  int file = path ? open(path, O_RDWR) : -1;
  if (file < 0) return;
  count = mmap(0, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (count == MAP_FAILED) count = 0;
}

static int counted(const char *name, int file) {
  int (*real)(int) = dlsym(RTLD_NEXT, name);
  if (count) __sync_fetch_and_add(count, 1);
  if (delay.tv_sec || delay.tv_nsec) nanosleep(&delay, 0);
  return real(file);
}

int fsync(int file) { return counted("fsync", file); }
int fdatasync(int file) { return counted("fdatasync", file); }
