export default {
  build: { target: 'esnext', minify: false },
  define: { 'process.env.NODE_ENV': '"production"', 'process.env': '{}' },
};
