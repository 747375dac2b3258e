/* How the state region of a rank leaves a device: as it is, behind nothing, one file for each rank. Who is waited for stands in
 * its words, and veriep_shape_areas tells which are whose.
 *
 *   dump_state FILE
 */
#include "veriep.h"
#include <stdio.h>
#include <stdlib.h>

/* These lines are what a device needs: 0 if the whole region is in the file. */
static int dump(const char *path, const void *state) {
  FILE *file = fopen(path, "wb");
  if (!file) return 1;
  size_t written = fwrite(state, 1, VERIEP_STATE_BYTES, file);
  return fclose(file) || written != VERIEP_STATE_BYTES;
}

int main(int argc, char **argv) {
  veriep_config config;
  veriep_shape shape;
  veriep_area areas[32];
  size_t count;
  char text[2048];
  unsigned char *state = calloc(VERIEP_STATE_BYTES, 1);
  if (argc != 2 || !state || veriep_config_default(&config, VERIEP_ABI_VERSION)) return 2;
  if (veriep_shape_new(&shape, &config, text, sizeof text)) {
    fprintf(stderr, "%s", text);
    return 2;
  }
  if (dump(argv[1], state)) return 2;
  free(state);
  if (veriep_shape_areas(&shape, NULL, 0, areas, sizeof areas / sizeof *areas, &count)) return 2;
  for (size_t i = 0; i < count; i++)
    if (areas[i].region == VERIEP_STATE)
      printf("%-20s at %7llu: %6llu of %llu bytes\n", areas[i].name, (unsigned long long)areas[i].start,
             (unsigned long long)areas[i].count, (unsigned long long)areas[i].stride);
  return 0;
}
